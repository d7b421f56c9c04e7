import type { RankReport } from './rank-report.js';

/**
 * Role: how the ranks of one instance (TP x PP x CP) agree, step by step.
 * Why: each rank runs its own executor over its own cache manager and transceiver. They must decide alike, or the collectives of the model
 *   would not match and the pages would not be where the peers look for them.
 * Threading: nothing blocks; whoever waits awaits.
 * Ordering: the n-th `exchange` of a rank meets the n-th of every other. A group that failed once fails every later exchange.
 */
export interface RankGroup {
  /** This rank, from 0. */
  readonly rank: number;
  readonly size: number;
  /** Another rank waits in an exchange that this rank did not enter yet, or the group failed: enter it. */
  readonly isAwaited: boolean;
  /**
   * Hands in this rank's report and resolves with the reports of the same step, in rank order, once every rank handed in its own.
   * @throws StateError for a second call while one is pending
   * @throws PeerLostError when a rank is gone, TransferTimeoutError when one did not come in time, ProtocolError when the ranks ran
   *   different steps; each names the ranks
   */
  exchange(report: RankReport): Promise<readonly RankReport[]>;
  /** One listener: `isAwaited` became true. */
  onAwaited(listener: () => void): void;
  /** Leaves; the exchanges of the others fail from now on, with the reason. Idempotent. */
  close(reason?: string): Promise<void>;
}

/** The group of an instance that has one rank. */
export const SINGLE_RANK_GROUP: RankGroup = Object.freeze({
  rank: 0,
  size: 1,
  isAwaited: false,
  exchange: (report: RankReport) => Promise.resolve([report]),
  onAwaited: () => {},
  close: () => Promise.resolve(),
});
