import type { ServerCall, ServerEvents, ServerRequest, ServerResult } from '../../../src/coordinator/disagg-server.js';
import { typedError } from '../../../src/executor/typed-error.js';
import { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import type { Journal } from '../core/journal.js';
import type { Random } from '../core/random.js';
import { type Scheduler, SimProcess } from '../core/scheduler.js';
import type { SimServer } from './sim-server.js';

export interface SimInstanceOptions {
  readonly name: string;
  readonly ranks: number;
  /** Ranks of each DP group, the leader of its requests first; one list when there are none. */
  readonly groups: readonly (readonly number[])[];
  readonly scheduler: Scheduler;
  readonly journal: Journal;
  readonly random: Random;
  /** How long the ranks of a group wait for one that is gone without a word. */
  readonly exchangeTimeoutMs: number;
  readonly joinWithinMs: number;
  readonly boot: (rank: number, group: LocalRankGroup | null, generation: number) => SimServer;
}

/** Ranks that hold the same requests. */
interface Group {
  readonly ranks: readonly number[];
  readonly members: readonly LocalRankGroup[] | null;
  /** Its clock outlives every rank. */
  readonly process: SimProcess;
  /** Something happened to one rank alone, so that they may part. */
  broken: boolean;
}

/** Role: one start of an instance: its ranks by flat rank, and who of them act alike. */
export class SimInstance {
  readonly ranks: SimServer[];
  /** Every process, those included that others replaced. */
  readonly history: SimServer[] = [];
  readonly #o: SimInstanceOptions;
  readonly #groups: readonly Group[];
  readonly #generations: number[];
  #nextGroup = 0;
  #nextId = 1;

  constructor(options: SimInstanceOptions) {
    this.#o = options;
    const { groups, scheduler, exchangeTimeoutMs } = options;
    this.#groups = groups.map((ranks, index) => {
      const process = new SimProcess(`${options.name} group ${index}`, scheduler, 0);
      const members =
        ranks.length === 1 ? null : LocalRankGroup.of(ranks.length, { clock: process, exchangeTimeoutMs });
      return { ranks, members, process, broken: false };
    });
    this.#generations = Array.from({ length: options.ranks }, () => 0);
    this.ranks = Array.from({ length: options.ranks }, (_, rank) => this.#boot(rank));
  }

  /** A rank of it was started by itself. */
  get isPatched(): boolean {
    return this.#generations.some((generation) => generation > 0);
  }

  /** All ranks are there and act alike. */
  get isWhole(): boolean {
    return this.ranks.every((rank) => rank.process.state !== 'dead' && !rank.closing && !rank.parted);
  }

  get isGone(): boolean {
    return this.ranks.every((rank) => rank.process.state === 'dead');
  }

  /** The rank that answers for the next request. */
  nextLeader(): SimServer {
    const { ranks } = this.#groups[this.#nextGroup++ % this.#groups.length] as Group;
    return this.ranks[ranks[0] as number] as SimServer;
  }

  /** Whoever has the same requests. */
  siblingsOf(server: SimServer): readonly SimServer[] {
    const group = this.#groupOf(server.rank);
    return group.ranks.map((rank) => this.ranks[rank] as SimServer);
  }

  /** In the leader's process, now; the other ranks get their copies a moment later. @throws what the leader's executor throws */
  submit(leader: SimServer, request: ServerRequest, events: ServerEvents): ServerCall {
    const siblings = this.siblingsOf(leader);
    if (siblings.length === 1) return leader.local.submit(request, events);
    const { scheduler, random } = this.#o;
    const id = this.#nextId++;
    let resolveDone: (result: ServerResult) => void = () => {};
    const done = new Promise<ServerResult>((resolve) => {
      resolveDone = resolve;
    });
    leader.accept(id, request, events, resolveDone);
    for (const rank of siblings) {
      if (rank === leader) continue;
      scheduler.at(random.real(0.02, 1), rank.process, () => {
        try {
          rank.accept(id, request, {}, () => {});
        } catch (error) {
          const { message } = typedError(error, 'the rank refused the request');
          this.#o.journal.note(14, id, 0, () => `${rank.name} refuses request ${id}: ${message}`);
        }
      });
    }
    return { done, cancel: () => void leader.executor.cancel(id) };
  }

  /** One rank has died. The others are told when their sockets notice; else they wait until the exchange runs out. */
  lost(rank: number, noticed: boolean): void {
    const group = this.#groupOf(rank);
    group.broken = true;
    if (!noticed || group.members === null) return;
    const member = group.members[group.ranks.indexOf(rank)] as LocalRankGroup;
    this.#o.scheduler.at(this.#o.random.real(0.1, 50), group.process, () => void member.close('its process ended'));
  }

  /** Another process at the place of one that died. It finds nobody to act with. */
  restartRank(rank: number): SimServer | null {
    if (this.ranks[rank]?.process.state !== 'dead') return null;
    this.#generations[rank] = (this.#generations[rank] as number) + 1;
    const server = this.#boot(rank);
    this.ranks[rank] = server;
    return server;
  }

  /** Nothing of this start runs any more. */
  end(): void {
    for (const { process } of this.#groups) process.state = 'dead';
  }

  /** Ranks that saw the same requests told the same of them. */
  checkAlike(): void {
    for (const { ranks, broken } of this.#groups) {
      const servers = ranks.map((rank) => this.ranks[rank] as SimServer);
      if (broken || servers.length === 1 || servers.some(({ closing }) => closing)) continue;
      const { journal } = this.#o;
      const [leader, ...others] = servers as [SimServer, ...SimServer[]];
      for (const server of servers)
        if (server.parted) journal.violation('I2 parted', `${server.name} acts alone although every rank lives`);
      for (const other of others)
        for (const id of new Set([...leader.outcomes.keys(), ...other.outcomes.keys()])) {
          const [here, there] = [leader.outcomes.get(id), other.outcomes.get(id)];
          if (here !== there)
            journal.violation('I2 unlike', `request ${id}: ${here} at ${leader.name}, ${there} at ${other.name}`);
        }
    }
  }

  #boot(rank: number): SimServer {
    const { ranks, scheduler, random, joinWithinMs } = this.#o;
    const group = this.#groupOf(rank);
    const member = group.members?.[group.ranks.indexOf(rank)] ?? null;
    const server = this.#o.boot(rank, member, this.#generations[rank] as number);
    this.history.push(server);
    if (ranks > 1) scheduler.at(random.real(0, joinWithinMs), server.process, () => server.join());
    return server;
  }

  #groupOf(rank: number): Group {
    return this.#groups.find(({ ranks }) => ranks.includes(rank)) as Group;
  }
}
