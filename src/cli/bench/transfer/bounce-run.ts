import type { BounceOptions } from '../../../agent/bounce.js';
import type { BounceStats } from '../../../agent/bounce-stats.js';
import { CudaDevice } from '../../../agent/cuda-device.js';
import type { Completion, FragmentTable, PeerHandle, ReadyEvent } from '../../../agent/transfer-agent.js';
import { SystemClock } from '../../../clock.js';
import { StateError, TransportError } from '../../../errors.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { mixSeed } from '../seeded-random.js';
import { shapeOf } from './bounce-receiver.js';
import { BounceRoof } from './bounce-roof.js';
import { layeredSourceBytes } from './layered-page-set.js';
import { POOL_OVER_MOVED, pageTokens, scatteredSlots, sortedPairs } from './page-set.js';
import type { ShapeSpec } from './receiver-messages.js';
import type { ReceiverProcess } from './receiver-process.js';

export interface BounceLaneSpec {
  readonly name: string;
  readonly agent: 'host' | 'nixl';
  readonly bounce: BounceOptions;
}

/** One copy command of the driver for as many bytes as the roof's between the same GPUs, in each round; empty for host memory. */
export interface BareCopySamples {
  /** By the host's clock, as slices are timed. */
  readonly hostMs: number[];
  /** By the GPU's. */
  readonly deviceMs: number[];
}

export interface BounceSamples {
  readonly elapsedMs: number[];
  /** From the last page read to the last page written, as the writer hears of both: how much earlier its pages are free. */
  readonly releasedEarlierMs: number[];
  readonly wrongBytes: number;
}

/** From submit to completion of a slice of one page of 4 KiB, nothing else being under way. */
export interface EmptyArenaCosts {
  /** The slice before it has just ended. */
  readonly busyUs: readonly number[];
  /** Nothing was sent for 5 ms. */
  readonly idleUs: readonly number[];
}

export interface BounceAbortCosts {
  /** From the cancel to the writer's pages. */
  readonly freeMs: readonly number[];
  /** The same of slices whose forward has not ended. */
  readonly behindEventMs: readonly number[];
  /** From the end of the receive to the receiver's pages, while its writer goes on sending. */
  readonly receiverFreeMs: readonly number[];
  readonly undrained: number;
  /** In pages that the receiver used as soon as they were free. */
  readonly wrongBytes: number;
}

interface Lane extends BenchAgent {
  readonly spec: BounceLaneSpec;
  readonly base: number;
  readonly peer: PeerHandle;
  readonly peerBase: number;
  readonly completions: CompletionWaiter;
}

interface Submitted {
  readonly id: number;
  readonly startMs: number;
  readonly done: Promise<Completion>;
  /** Its source pages are free; no later than `done`. */
  readonly released: Promise<number>;
}

const PAGE_BYTES = 4096;
const COST_SAMPLES = 200;
const IDLE_MS = 5;
const ABORT_PAGE_BYTES = 32768;
const ABORT_BYTES = 256 * 2 ** 20;
const ABORT_CANARY_MS = 15;
/** About 30 ms of an H200. */
const ABORT_BUSY_BYTES = 256 * 2 ** 20;
const ABORT_BUSY_ROUNDS = 480;

/** Role: the sending process of bounced rows. Each lane has a pool and an arena on both sides, and shares the contiguous copy (`roof`). */
export class BounceTransferRun {
  readonly #receiver: ReceiverProcess;
  readonly #gpus: readonly [number, number] | null;
  readonly #totalBytes: number;
  readonly #slicePages: number;
  readonly #lanes: Lane[] = [];
  readonly #released = new Map<number, (atMs: number) => void>();
  readonly #clock = new SystemClock();
  #roof: BounceRoof | null = null;
  #nextSubmission = 1;
  #nextTicket = 1n;

  /** @param gpus the writer's and the receiver's; null: host memory */
  constructor(
    receiver: ReceiverProcess,
    gpus: readonly [number, number] | null,
    totalBytes: number,
    slicePages: number,
  ) {
    this.#receiver = receiver;
    this.#gpus = gpus;
    this.#totalBytes = totalBytes;
    this.#slicePages = slicePages;
  }

  async open(specs: readonly BounceLaneSpec[]): Promise<void> {
    const [from, to] = this.#gpus ?? [undefined, undefined];
    const fromDevice = from === undefined ? {} : { device: from };
    const toDevice = to === undefined ? {} : { device: to };
    this.#roof = await BounceRoof.open(this.#receiver, this.#gpus, this.#totalBytes);
    const sizeBytes = Math.max(this.#totalBytes * POOL_OVER_MOVED, layeredSourceBytes(this.#totalBytes));
    for (const spec of specs) {
      const { name, agent, bounce } = spec;
      const bench = await openAgent(agent, null, 'transfer-sender', { ...fromDevice, path: 'bounce', bounce });
      const completions = new CompletionWaiter();
      bench.agent.onCompletions((batch) => {
        for (const { kind, submission } of batch) {
          if (kind === 'drained') continue;
          this.#released.get(submission)?.(this.#clock.now());
          this.#released.delete(submission);
        }
        completions.accept(batch);
      });
      const { base } = await bench.agent.allocatePool({ sizeBytes, ...fromDevice });
      const opened = await this.#receiver.ask(
        {
          kind: 'open-bounce',
          lane: name,
          agent,
          ...toDevice,
          sizeBytes: this.#totalBytes * POOL_OVER_MOVED,
          bounce,
        },
        'opened',
      );
      const peer = await this.#receiver.orLost(bench.agent.addPeer(opened.metadata, 'transfer-receiver'));
      await this.#receiver.ask({ kind: 'meet', lane: name, metadata: await bench.agent.metadata(), base }, 'done');
      this.#lanes.push({ ...bench, spec, base, peer, peerBase: opened.base, completions });
    }
  }

  /** Lanes take turns in each round, the contiguous copies first. @returns samples by lane, `roof` among them */
  async measure(
    spec: ShapeSpec,
    rounds: number,
    seed: number,
    onRound: () => void,
  ): Promise<{ readonly lanes: ReadonlyMap<string, BounceSamples>; readonly bareCopy: BareCopySamples }> {
    const roof = this.#roof;
    if (roof === null) throw new StateError('the run was not opened');
    const shape = shapeOf(spec);
    const { pairCount, tokensPerPage, bytesPerPair } = shape;
    const source = scatteredSlots(pairCount, mixSeed(seed, bytesPerPair, 0));
    const destination = scatteredSlots(pairCount, mixSeed(seed, bytesPerPair, 1));
    const pairs = sortedPairs(source, destination);
    const samples = new Map<string, BounceSamples>([['roof', { elapsedMs: [], releasedEarlierMs: [], wrongBytes: 0 }]]);
    const bareCopy: BareCopySamples = { hostMs: [], deviceMs: [] };
    const tables = new Map<string, { readonly table: FragmentTable; readonly ticket: bigint }>();
    for (const lane of this.#lanes) {
      const tokens = pairCount * tokensPerPage;
      await lane.content.fill({
        table: shape.source(lane.base),
        group: 0,
        run: { begin: 0, slots: source },
        tokenBegin: 0,
        tokenEnd: tokens,
        tokenSeeds: lane.content.chainTokenSeeds(pageTokens(tokens, bytesPerPair)),
        firstHead: 0,
      });
      tables.set(lane.spec.name, {
        table: this.#tableOf(lane, spec),
        ticket: await this.#expect(lane, spec, destination),
      });
      samples.set(lane.spec.name, { elapsedMs: [], releasedEarlierMs: [], wrongBytes: 0 });
    }
    for (let round = -1; round < rounds; round++) {
      const bare = await roof.timeBareCopy();
      if (round >= 0 && bare !== null) {
        bareCopy.hostMs.push(bare.hostMs);
        bareCopy.deviceMs.push(bare.deviceMs);
      }
      const roofMs = await roof.timeAgentsCopy();
      if (round >= 0) samples.get('roof')?.elapsedMs.push(roofMs);
      for (const lane of this.#lanes) {
        const { table, ticket } = tables.get(lane.spec.name) as { table: FragmentTable; ticket: bigint };
        const { elapsedMs, releasedEarlierMs } = await this.#transfer(
          lane,
          table,
          pairs,
          ticket,
          pairCount * bytesPerPair,
        );
        if (round < 0) continue;
        samples.get(lane.spec.name)?.elapsedMs.push(elapsedMs);
        samples.get(lane.spec.name)?.releasedEarlierMs.push(releasedEarlierMs);
      }
      onRound();
    }
    for (const lane of this.#lanes) {
      const { name } = lane.spec;
      await this.#receiver.ask({ kind: 'end', lane: name, ticket: tables.get(name)?.ticket ?? 0n }, 'done');
      const wrongBytes = await this.#check(lane, spec, destination, { seed: bytesPerPair });
      samples.set(name, { ...(samples.get(name) as BounceSamples), wrongBytes });
    }
    return { lanes: samples, bareCopy };
  }

  /** Destroys what the pools hold. */
  async measureEmptyArena(name: string): Promise<EmptyArenaCosts> {
    const lane = this.#lane(name);
    const spec: ShapeSpec = { kind: 'pages', pieceBytes: PAGE_BYTES, totalBytes: PAGE_BYTES };
    const table = this.#tableOf(lane, spec);
    const ticket = await this.#expect(lane, spec, Int32Array.of(0));
    const busyUs: number[] = [];
    const idleUs: number[] = [];
    for (let i = -20; i < 2 * COST_SAMPLES; i++) {
      const isIdle = i >= COST_SAMPLES;
      if (isIdle) await new Promise((resolve) => setTimeout(resolve, IDLE_MS));
      const { startMs, done } = this.#submit(lane, table, Int32Array.of(0, 0), ticket, null);
      const completion = await this.#receiver.orLost(done);
      if (completion.error !== null) throw completion.error;
      if (i >= 0) (isIdle ? idleUs : busyUs).push((completion.finishedAtMs - startMs) * 1000);
    }
    await this.#receiver.ask({ kind: 'end', lane: name, ticket }, 'done');
    return { busyUs, idleUs };
  }

  /**
   * `count` times: cancels slices under way, or ends the receive under them, and has the receiver use its pages as soon as they are free.
   * Every third time the slices wait for a forward (GPU only). Destroys what the pools hold.
   */
  async measureAborts(name: string, count: number): Promise<BounceAbortCosts> {
    const lane = this.#lane(name);
    const spec: ShapeSpec = {
      kind: 'pages',
      pieceBytes: ABORT_PAGE_BYTES,
      totalBytes: Math.min(ABORT_BYTES, this.#totalBytes),
    };
    const { pairCount } = shapeOf(spec);
    const table = this.#tableOf(lane, spec);
    const slots = scatteredSlots(pairCount, 8n);
    const pairs = sortedPairs(scatteredSlots(pairCount, 7n), slots);
    const gpu = this.#gpus === null ? null : await CudaDevice.open(this.#gpus[0]);
    const stream = (await gpu?.createStream('high')) ?? null;
    const costs = { freeMs: [] as number[], behindEventMs: [] as number[], receiverFreeMs: [] as number[] };
    let wrongBytes = 0;
    let undrained = 0;
    for (let i = 0; i < count; i++) {
      const isBehindEvent = stream !== null && i % 3 === 2;
      const endsReceive = i % 3 === 1;
      let after: ReadyEvent | null = null;
      if (gpu !== null && stream !== null && isBehindEvent) {
        const event = gpu.createEvent();
        stream.clear(lane.base, Math.min(ABORT_BUSY_BYTES, this.#totalBytes), ABORT_BUSY_ROUNDS);
        event.record(stream);
        after = event;
      }
      const ticket = await this.#expect(lane, spec, slots);
      const submitted: Submitted[] = [];
      for (let at = 0; at < pairs.length; at += 2 * 2048)
        submitted.push(this.#submit(lane, table, pairs.subarray(at, at + 2 * 2048), ticket, after));
      // Anywhere between the first gather and the last byte.
      const cancelAtMs = this.#clock.now() + (i % 8) * 0.15;
      while (this.#clock.now() < cancelAtMs);
      const cancelledAtMs = this.#clock.now();
      if (!endsReceive) for (const { id } of submitted) lane.agent.cancel(id);
      const end = await this.#receiver.ask({ kind: 'end', lane: name, ticket }, 'done');
      if (endsReceive) costs.receiverFreeMs.push(end.ms);
      // The receiver's pages are its own now, whatever this side still does.
      const checked = this.#check(lane, spec, slots, { seed: i + 1, canaryMs: ABORT_CANARY_MS });
      const freedAtMs = await this.#receiver.orLost(Promise.all(submitted.map(({ released }) => released)));
      if (!endsReceive) {
        (isBehindEvent ? costs.behindEventMs : costs.freeMs).push(Math.max(...freedAtMs) - cancelledAtMs);
      }
      const ends = await this.#receiver.orLost(Promise.all(submitted.map(({ done }) => done)));
      undrained += ends.filter(({ drained }) => !drained).length;
      wrongBytes += await checked;
    }
    // What a gather still fills is given back when that ends.
    for (let i = 0; i < 1000 && (lane.agent.bounceStats?.()?.arenaUsedBytes ?? 0) > 0; i++)
      await new Promise((resolve) => setTimeout(resolve, 2));
    stream?.close();
    return { ...costs, undrained, wrongBytes };
  }

  /** Of both sides. Every region must be free again when nothing is under way. */
  async stats(name: string): Promise<{ readonly writer: BounceStats | null; readonly receiver: BounceStats | null }> {
    const { stats } = await this.#receiver.ask({ kind: 'stats', lane: name }, 'stats');
    return { writer: this.#lane(name).agent.bounceStats?.() ?? null, receiver: stats };
  }

  async close(): Promise<void> {
    await Promise.all([...this.#lanes.map(({ agent }) => agent.close(2000)), this.#roof?.close(2000)]);
  }

  #lane(name: string): Lane {
    return this.#lanes.find(({ spec }) => spec.name === name) as Lane;
  }

  #tableOf(lane: Lane, spec: ShapeSpec): FragmentTable {
    const { source, destination, fragments } = shapeOf(spec);
    return lane.agent.prepareFragments(lane.peer, source(lane.base), destination(lane.peerBase), fragments);
  }

  async #expect(lane: Lane, shape: ShapeSpec, slots: Int32Array): Promise<bigint> {
    const ticket = this.#nextTicket++;
    await this.#receiver.ask({ kind: 'expect', lane: lane.spec.name, ticket, shape, slots }, 'done');
    return ticket;
  }

  #submit(
    lane: Lane,
    fragments: FragmentTable,
    slotPairs: Int32Array,
    ticket: bigint,
    after: ReadyEvent | null,
  ): Submitted {
    const id = this.#nextSubmission++;
    const done = lane.completions.expect(id);
    const released = new Promise<number>((resolve) => this.#released.set(id, resolve));
    const startMs = this.#clock.now();
    lane.agent.submit({ id, peer: lane.peer, flow: 1, groups: [{ fragments, slotPairs, key: 0 }], after, ticket });
    return { id, startMs, done, released };
  }

  async #transfer(
    lane: Lane,
    fragments: FragmentTable,
    slotPairs: Int32Array,
    ticket: bigint,
    bytes: number,
  ): Promise<{ readonly elapsedMs: number; readonly releasedEarlierMs: number }> {
    const slices: Submitted[] = [];
    for (let at = 0; at < slotPairs.length; at += 2 * this.#slicePages)
      slices.push(this.#submit(lane, fragments, slotPairs.subarray(at, at + 2 * this.#slicePages), ticket, null));
    const completions = await this.#receiver.orLost(Promise.all(slices.map(({ done }) => done)));
    const releasedAtMs = await Promise.all(slices.map(({ released }) => released));
    const failed = completions.find(({ status }) => status !== 'transferred');
    const moved = completions.reduce((sum, completion) => sum + completion.bytes, 0);
    if (failed !== undefined || moved !== bytes)
      throw failed?.error ?? new TransportError(`${lane.spec.name}: ${moved} of ${bytes} bytes arrived`);
    const endMs = Math.max(...completions.map(({ finishedAtMs }) => finishedAtMs));
    return { elapsedMs: endMs - (slices[0]?.startMs ?? endMs), releasedEarlierMs: endMs - Math.max(...releasedAtMs) };
  }

  async #check(
    lane: Lane,
    shape: ShapeSpec,
    slots: Int32Array,
    how: { readonly seed: number; readonly canaryMs?: number },
  ): Promise<number> {
    const found = await this.#receiver.ask({ kind: 'check', lane: lane.spec.name, shape, slots, ...how }, 'verified');
    // A page that was not looked at counts as wrong.
    return found.wrongBytes + slots.length * shapeOf(shape).bytesPerPair - found.bytesChecked;
  }
}
