import type { Cluster } from './cluster/cluster.js';
import type { Ending } from './cluster/life.js';
import type { Violation } from './core/journal.js';
import type { Plan } from './plan.js';

/**
 * Role: what became of one run.
 * Why: a class, since a getter of an object literal would keep the cluster that it sees until the whole heap is looked at.
 */
export class RunReport {
  readonly seed: number;
  readonly violations: readonly Violation[];
  /** Of everything that happened: equal hashes are equal runs. */
  readonly hash: string;
  /** Request lives, those of the health check included. */
  readonly lives: number;
  readonly completed: number;
  readonly events: number;
  readonly virtualMs: number;
  /** Filled when the run was told to tell. */
  readonly story: readonly string[];
  /** What each side of each request of the plan was told. */
  readonly endings: ReadonlyMap<number, readonly Ending[]>;
  readonly #cluster: Cluster;

  constructor(cluster: Cluster, plan: Plan, events: number) {
    const { journal, lives, scheduler } = cluster;
    this.seed = plan.seed;
    this.violations = journal.violations;
    this.hash = journal.hash;
    this.lives = lives.length;
    this.completed = lives.filter((life) => life.completed).length;
    this.events = events;
    this.virtualMs = scheduler.now;
    this.story = journal.lines;
    this.endings = new Map(lives.map((life) => [life.item.number, life.endings]));
    this.#cluster = cluster;
  }

  /** Of every rank that ever ran. */
  get counters(): Readonly<Record<string, number>> {
    const counters: Record<string, number> = {};
    for (const host of this.#cluster.hosts)
      for (const server of host.history)
        for (const [name, count] of Object.entries(server.transceiver.stats().counters))
          counters[name] = (counters[name] ?? 0) + count;
    return counters;
  }
}
