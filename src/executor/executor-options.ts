import type { CachePrompt, KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Clock } from '../clock.js';
import { ConfigError } from '../errors.js';
import type { RankGroup } from '../rank-group/rank-group.js';
import type { CacheTransceiver } from '../session/cache-transceiver.js';
import type { ExecutorEvents } from './executor-events.js';
import type { ContextIdentity } from './forward-stage.js';
import type { ModelEngine } from './model-engine.js';
import type { RankGroupStats } from './rank-consensus.js';
import type { LlmRequest, RequestState } from './request.js';
import { checkLimits, type SchedulerLimits } from './scheduler.js';

/**
 * `plain`: a step is scheduled when the results of the one before it are known. `overlap`: it is scheduled and enqueued before they are
 * read, so that the device never waits for the loop; what a step tells (tokens, stops, failures) takes effect one step later.
 */
export type StepSchedule = 'plain' | 'overlap';

/** Steps that each schedule lets be under way at once. */
export const STEPS_IN_FLIGHT: Readonly<Record<StepSchedule, number>> = { plain: 1, overlap: 2 };

/** Parts and limits of one executor. */
export interface ExecutorOptions {
  readonly clock: Clock;
  readonly cache: KvCacheManager;
  readonly transceiver: CacheTransceiver;
  readonly engine: ModelEngine;
  readonly limits: SchedulerLimits;
  /** Default 'plain'. 'overlap' needs an engine that `feedsItself`. Equal on every rank of a server. */
  readonly schedule?: StepSchedule;
  readonly events?: ExecutorEvents;
  /** Told to generation servers by context-first answers. */
  readonly identity?: ContextIdentity;
  /** Names the content of each full block of a prompt. Default: chained SHA-256 of its tokens. */
  readonly blockHashesOf?: (request: LlmRequest) => CachePrompt['blockHashes'];
  /** How often a loop that waits looks again by itself. Default 100. */
  readonly housekeepingIntervalMs?: number;
  /**
   * The other ranks of this instance, which run the same requests under the same ids. Stays the caller's. Default: there are none.
   * Every rank's engine must sample the same tokens.
   */
  readonly rankGroup?: RankGroup;
  /** Several ranks: what some rank never learns of holds the others for twice this. Default 60000, as the setting. */
  readonly kvTransferTimeoutMs?: number;
}

/** Counters since the executor started. */
export interface ExecutorStats {
  /** Turns of the loop, those that found nothing to do included. */
  readonly turns: number;
  /** Forwards that were launched. */
  readonly steps: number;
  readonly live: number;
  readonly requestsByState: Readonly<Record<RequestState, number>>;
  /** Errors of this package, or of what is plugged in, that its loop or a timer met: what they belonged to has failed, and each is a warning. */
  readonly internalErrors: number;
  /** Null on a server of one rank. */
  readonly rankGroup: RankGroupStats | null;
}

/** What `Executor.close` left. */
export interface ExecutorCloseReport {
  /** False: requests were failed at the deadline, or a forward still ran. */
  readonly drained: boolean;
  readonly failed: number;
}

/** @throws ConfigError naming the option and what it may be */
export function checkExecutorOptions({ limits, schedule = 'plain', engine }: ExecutorOptions): void {
  checkLimits(limits);
  if (!Object.hasOwn(STEPS_IN_FLIGHT, schedule)) {
    throw new ConfigError(`schedule is ${JSON.stringify(schedule)}; it must be 'plain' or 'overlap'`);
  }
  if (schedule === 'overlap' && engine.feedsItself !== true) {
    throw new ConfigError(
      "schedule 'overlap' enqueues a decode step before the token that it is fed is read, and this model engine does not say that it can feed itself; set feedsItself on the engine once it does, or use schedule 'plain'",
    );
  }
}
