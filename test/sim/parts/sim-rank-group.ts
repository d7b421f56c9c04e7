import type { LocalRankGroup } from '../../../src/rank-group/local-rank-group.js';
import type { RankGroup } from '../../../src/rank-group/rank-group.js';
import type { RankReport } from '../../../src/rank-group/rank-report.js';
import type { Random } from '../core/random.js';
import type { Scheduler, SimProcess } from '../core/scheduler.js';

/**
 * Role: the way between a rank and the group it meets in: what the ranks agreed on reaches each as an event of its own process, which may
 *   be stopped, late or dead by then.
 */
export class SimRankGroup implements RankGroup {
  readonly rank: number;
  readonly size: number;
  readonly #inner: LocalRankGroup;
  readonly #scheduler: Scheduler;
  readonly #process: SimProcess;
  readonly #random: Random;

  constructor(inner: LocalRankGroup, scheduler: Scheduler, process: SimProcess, random: Random) {
    this.rank = inner.rank;
    this.size = inner.size;
    this.#inner = inner;
    this.#scheduler = scheduler;
    this.#process = process;
    this.#random = random;
  }

  get isAwaited(): boolean {
    return this.#inner.isAwaited;
  }

  exchange(report: RankReport): Promise<readonly RankReport[]> {
    return new Promise((resolve, reject) => {
      this.#inner.exchange(report).then(
        (reports) => this.#deliver(() => resolve(reports)),
        (error: unknown) => this.#deliver(() => reject(error)),
      );
    });
  }

  onAwaited(listener: () => void): void {
    this.#inner.onAwaited(() => this.#deliver(listener));
  }

  close(reason?: string): Promise<void> {
    return this.#inner.close(reason);
  }

  #deliver(run: () => void): void {
    this.#scheduler.at(this.#random.real(0.02, 0.3), this.#process, run);
  }
}
