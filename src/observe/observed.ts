import type { DisaggCoordinator } from '../coordinator/disagg-coordinator.js';
import type { Executor } from '../executor/executor.js';
import type { KvCacheTransceiver } from '../transceiver.js';

/** The parts of a process that metrics, traces and logs attach to; any of them may be left out. */
export interface Observed {
  readonly transceiver?: Pick<KvCacheTransceiver, 'observe' | 'stats'>;
  readonly executor?: Pick<Executor, 'observe' | 'stats'>;
  readonly coordinator?: Pick<DisaggCoordinator, 'observe' | 'stats'>;
}

/** All of `calls`, once. */
export function once(calls: readonly (() => void)[]): () => void {
  let left = [...calls];
  return () => {
    const now = left;
    left = [];
    for (const call of now) call();
  };
}
