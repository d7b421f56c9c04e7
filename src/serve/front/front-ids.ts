import { randomInt } from 'node:crypto';
import type { Clock } from '../../clock.js';
import { PROCESS_COUNT, SnowflakeIds } from '../../coordinator/snowflake-ids.js';
import type { IdOrigin } from '../link/link-message.js';

export interface FrontIdsOptions {
  readonly clock: Clock;
  /** Unix time in ms when `clock.now()` was 0. */
  readonly unixTimeAtOriginMs: number;
  /** The file's. */
  readonly nodeId: number;
  /** A whole number below the limit. Default: at random. */
  readonly draw?: (limit: number) => number;
  readonly onWarning: (message: string) => void;
}

/**
 * Role: the request ids of this front, which no other front that shares a worker with it makes.
 * Why: the file is the same for several fronts, and process ids of containers are all 1, so that the part of the process is drawn at random. Workers
 *   see every front that they serve: one that finds two alike says so to the second, which draws again.
 */
export class FrontIds {
  readonly ids: SnowflakeIds;
  readonly #o: FrontIdsOptions;
  readonly #draw: (limit: number) => number;
  readonly #taken = new Set<number>();
  readonly #listeners: (() => void)[] = [];
  #processId: number;

  constructor(options: FrontIdsOptions) {
    const { clock, unixTimeAtOriginMs, nodeId, draw = randomInt } = options;
    this.#o = options;
    this.#draw = draw;
    this.#processId = draw(PROCESS_COUNT);
    this.ids = new SnowflakeIds({ clock, unixTimeAtOriginMs, nodeId, processId: this.#processId });
  }

  get origin(): IdOrigin {
    return { nodeId: this.#o.nodeId, processId: this.#processId };
  }

  /** Workers must hear of it. */
  onChange(listener: () => void): void {
    this.#listeners.push(listener);
  }

  /** Another front makes these. Words about ids that are no longer made are late, and change nothing. */
  refused({ nodeId, processId }: IdOrigin): void {
    if (nodeId !== this.#o.nodeId || processId !== this.#processId) return;
    this.#taken.add(processId);
    const free = Array.from({ length: PROCESS_COUNT }, (_, process) => process).filter((one) => !this.#taken.has(one));
    if (free.length === 0) {
      // Some of the others may be gone by the next greeting.
      this.#taken.clear();
      this.#o.onWarning(
        `${PROCESS_COUNT} fronts of node_id ${nodeId} share these workers, as many as may; give this front another node_id`,
      );
      return;
    }
    this.#processId = free[this.#draw(free.length)] as number;
    this.ids.moveTo(this.#processId);
    for (const listener of this.#listeners) listener();
  }
}
