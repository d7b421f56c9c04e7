import { DisaggCoordinator, SnowflakeIds } from '../../../src/coordinator/index.js';
import { DEFAULT_EPOCH_MS } from '../../../src/coordinator/snowflake-ids.js';
import { WriterOutcome } from '../../../src/wire/messages.js';
import { Journal } from '../core/journal.js';
import { Random } from '../core/random.js';
import { Scheduler, SimProcess } from '../core/scheduler.js';
import { Memory } from '../parts/memory.js';
import type { SimAgent } from '../parts/sim-agent.js';
import { SimFabric } from '../parts/sim-fabric.js';
import { SimNetwork } from '../parts/sim-network.js';
import type { HostRef, Plan, RequestItem } from '../plan.js';
import { FaultInjector } from './fault-injector.js';
import { LeaseBook } from './lease-book.js';
import { Life } from './life.js';
import { SettleBook } from './settle-book.js';
import { SimHost } from './sim-host.js';
import { SimInstance } from './sim-instance.js';
import { placesOf, SimServer } from './sim-server.js';
import { TicketBook } from './ticket-book.js';

/** Where a frame has its request id, and, where its body begins with one, its ticket; in a report the outcome follows. */
const ID_BYTES = 16;
const TICKET_BYTES = 24;
const OUTCOME_BYTE = 32;

/** Role: a whole cluster under one scheduler: hosts, coordinators between every pair, wires, memory, faults. */
export class Cluster {
  readonly scheduler = new Scheduler();
  readonly journal: Journal;
  readonly network: SimNetwork;
  readonly fabric: SimFabric;
  readonly contexts: readonly SimHost[];
  readonly generations: readonly SimHost[];
  readonly hosts: readonly SimHost[];
  readonly lives: Life[] = [];
  readonly book: SettleBook;
  readonly tickets: TicketBook;
  /** Frames that the network did not deliver. */
  lostFrames = 0;
  readonly #plan: Plan;
  readonly #coordinators = new Map<string, DisaggCoordinator>();
  readonly #leases: { readonly book: LeaseBook; readonly coordinator: DisaggCoordinator }[] = [];
  readonly #coordinatorProcess: SimProcess;
  #incarnations = 0;
  #ticketCount = 0n;
  #faulty = true;

  constructor(plan: Plan, telling: boolean) {
    Memory.reset();
    this.#plan = plan;
    const { seed, shape } = plan;
    this.journal = new Journal(telling, () => this.scheduler.now);
    this.network = new SimNetwork(this.scheduler, this.journal, seed);
    this.fabric = new SimFabric(this.scheduler, this.journal, seed);
    this.book = new SettleBook(this.journal);
    this.tickets = new TicketBook(this.journal);
    this.#coordinatorProcess = new SimProcess('coordinator', this.scheduler, 500);
    const injector = new FaultInjector(seed, plan.faults, {
      endpointsOf: (side, index) => placesOf(shape, side).map((_, rank) => endpointOf(side, index, rank)),
    });
    this.network.setRule((frame) => {
      const fate = this.#faulty ? injector.frame(frame) : null;
      if (fate?.copies === 0) this.lostFrames += 1;
      // A question that is lost or late is not one that the other side knows of.
      if (frame.type === 'REQUEST_DATA' && fate === null) {
        const rid = ridOf(frame.bytes);
        this.book.questions.set(rid, frame.bytes);
        this.book.noteAsked(rid, this.#askerAt(frame.from), frame.from, frame.to, this.scheduler.now);
      }
      if (frame.type === 'REQUEST_DATA') this.tickets.asked(frame.bytes, frame.from, frame.to);
      if (frame.type === 'WRITER_REPORT') this.tickets.said(frame.bytes, 'frame', frame.from);
      if (frame.type === 'ACCEPTED') this.book.accepted.add(ridOf(frame.bytes));
      if (frame.type === 'WRITER_REPORT' && frame.bytes[OUTCOME_BYTE] === WriterOutcome.DONE)
        this.book.noteDone(ticketOf(frame.bytes), ridOf(frame.bytes), frame.from, frame.to);
      if (frame.type === 'REPORT_ACK') this.book.noteTaken(ticketOf(frame.bytes));
      return fate;
    });
    this.fabric.setFaults({
      fateOf: (agent, random) =>
        this.#faulty
          ? injector.fateOf(agent, random)
          : { kind: 'transfer', durationMs: random.real(0.05, 2), tailMs: 0 },
      noted: (agent, bytes) => this.tickets.said(bytes, 'note', this.#endpointOf(agent)),
    });
    this.scheduler.onThrow((error, owner) => {
      const text = error instanceof Error ? (error.stack ?? error.message) : String(error);
      this.journal.violation('threw', `${owner?.name ?? 'the hardware'}: ${text}`);
    });
    const forward = (ref: HostRef, rank: number): 'enqueue' | 'device' | null =>
      this.#faulty ? injector.forward(ref.side, ref.index, rank) : null;
    const boot = (side: HostRef['side'], count: number): SimHost[] =>
      Array.from({ length: count }, (_, index) => this.#host({ side, index }, forward));
    this.contexts = boot('context', shape.contexts);
    this.generations = boot('generation', shape.generations);
    this.hosts = [...this.contexts, ...this.generations];
  }

  /** Every rank that runs. */
  get servers(): readonly SimServer[] {
    return this.hosts.flatMap(({ running }) => running);
  }

  at(ref: HostRef): SimHost {
    return (ref.side === 'context' ? this.contexts : this.generations)[ref.index] as SimHost;
  }

  admit(item: RequestItem): Life {
    const context = this.contexts[item.context] as SimHost;
    const generation = this.generations[item.generation] as SimHost;
    const life = new Life({
      seed: this.#plan.seed,
      item,
      context,
      generation,
      coordinator: this.#coordinator(item.context, item.generation),
      scheduler: this.scheduler,
      journal: this.journal,
    });
    this.lives.push(life);
    life.start();
    return life;
  }

  /** Name of the generation process at this endpoint. */
  #askerAt(from: string): string {
    for (const { instance } of this.generations)
      for (const { endpoint, name } of instance.ranks) if (endpoint === from) return name;
    return from;
  }

  #endpointOf(agent: SimAgent): string {
    for (const { running } of this.hosts)
      for (const server of running) if (server.agent === agent) return server.endpoint;
    return agent.name;
  }

  /** After each event. */
  checkLeases(): void {
    for (const { book, coordinator } of this.#leases) book.check(coordinator);
  }

  /** From now on nothing goes wrong. */
  endFaults(): void {
    this.#faulty = false;
  }

  #host(ref: HostRef, forward: (ref: HostRef, rank: number) => 'enqueue' | 'device' | null): SimHost {
    const { seed, shape } = this.#plan;
    const { scheduler, network, fabric, journal } = this;
    const places = placesOf(shape, ref.side);
    const endpoints = places.map((_, rank) => endpointOf(ref.side, ref.index, rank));
    const name = `${ref.side}${ref.index}`;
    const groups = Array.from({ length: shape[ref.side].dpSize }, (_, group) =>
      [...places.keys()].filter((rank) => places[rank]?.dpRank === group),
    );
    const random = new Random(seed, 6, ref.side === 'context' ? 0 : 1, ref.index);
    const boot = (): SimInstance => {
      this.#incarnations += 1;
      const incarnation = this.#incarnations;
      return new SimInstance({
        name,
        ranks: places.length,
        groups,
        scheduler,
        journal,
        random,
        exchangeTimeoutMs: shape.limits.kvTransferTimeoutMs,
        joinWithinMs: shape.joinWithinMs,
        boot: (rank, rankGroup, generation) =>
          new SimServer({
            ref,
            endpoints,
            place: places[rank] as (typeof places)[number],
            rankGroup,
            incarnation,
            generation,
            shape,
            seed,
            scheduler,
            network,
            fabric,
            journal,
            forwardFailure: () => forward(ref, rank),
            newTicket: () => {
              this.#ticketCount += 1n;
              return 0x7000_0000n + this.#ticketCount;
            },
            onSettled: (note) => {
              this.book.note(note, scheduler.now);
              this.tickets.settled(note, shape);
            },
          }),
      });
    };
    // Any rank may be the one that requests name.
    const endpoint = endpoints[(seed + ref.index) % endpoints.length] as string;
    return new SimHost({ name, endpoint, scheduler, network, fabric, journal, random, boot });
  }

  #coordinator(context: number, generation: number): DisaggCoordinator {
    const key = `${context}>${generation}`;
    let coordinator = this.#coordinators.get(key);
    if (coordinator === undefined) {
      const clock = this.#coordinatorProcess;
      const book = new LeaseBook(this.journal);
      coordinator = new DisaggCoordinator({
        clock,
        ids: new SnowflakeIds({
          clock,
          unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9,
          nodeId: 0,
          processId: context * 8 + generation,
        }),
        context: book.watched('context', this.contexts[context] as SimHost),
        generation: book.watched('generation', this.generations[generation] as SimHost),
        scheduleStyle: 'generation_first',
        maxRetries: 0,
      });
      this.#coordinators.set(key, coordinator);
      this.#leases.push({ book, coordinator });
    }
    return coordinator;
  }
}

function endpointOf(side: HostRef['side'], index: number, rank: number): string {
  return `tcp://127.0.0.1:${(side === 'context' ? 20_000 : 21_000) + index + 10 * rank}`;
}

function ridOf(bytes: Uint8Array): bigint {
  return u64At(bytes, ID_BYTES);
}

function ticketOf(bytes: Uint8Array): bigint {
  return u64At(bytes, TICKET_BYTES);
}

function u64At(bytes: Uint8Array, offset: number): bigint {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getBigUint64(offset, true);
}
