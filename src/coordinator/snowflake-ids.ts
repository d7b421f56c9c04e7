import type { Clock } from '../clock.js';
import { ConfigError } from '../errors.js';

const NODE_BITS = 8n;
const PROCESS_BITS = 6n;
const COUNTER_BITS = 9n;
const COUNTER_LIMIT = 1n << COUNTER_BITS;
const MS_LIMIT = 1n << 41n;
/** Nodes that the ids can tell apart. */
export const NODE_COUNT = 1 << Number(NODE_BITS);
/** Coordinators that one node can have. */
export const PROCESS_COUNT = 1 << Number(PROCESS_BITS);
/** Smaller ids are local to one server. */
const GLOBAL_ID_BASE = 1n << 40n;

/** 2025-01-01T00:00:00Z: 41 bits of milliseconds last until 2094. */
export const DEFAULT_EPOCH_MS = 1_735_689_600_000;

/** Who makes ids; two makers must differ in node or process. */
export interface SnowflakeOptions {
  readonly clock: Clock;
  /** Unix time in ms when `clock.now()` was 0: the clock alone starts anywhere, and ids must not repeat after a restart. */
  readonly unixTimeAtOriginMs: number;
  /** 0 .. 255, unique among machines that share servers. */
  readonly nodeId: number;
  /** 0 .. 63, unique among coordinators of one node. */
  readonly processId: number;
  /** Unix time in ms that counts as 0; equal everywhere. Default 2025-01-01. */
  readonly epochMs?: number;
}

/**
 * Unique, ascending 64-bit request ids:
 *
 *   63                              23         15           9           0
 *   +--------------------------------+----------+-----------+-----------+
 *   | ms since the epoch, 41 bits    | node, 8  | process, 6| counter, 9|
 *   +--------------------------------+----------+-----------+-----------+
 */
export class SnowflakeIds {
  readonly #clock: Clock;
  readonly #offsetMs: number;
  readonly #nodeId: number;
  #origin: bigint;
  #lastMs = -1n;
  #counter = 0n;

  /** @throws ConfigError for an id out of range */
  constructor(options: SnowflakeOptions) {
    const { clock, unixTimeAtOriginMs, nodeId, processId, epochMs = DEFAULT_EPOCH_MS } = options;
    inRange('nodeId', nodeId, NODE_COUNT);
    this.#nodeId = nodeId;
    this.#clock = clock;
    this.#offsetMs = unixTimeAtOriginMs - epochMs;
    this.#origin = originOf(nodeId, processId);
  }

  /**
   * Makes the ids of another process from now on; they still ascend.
   * @param processId 0 .. 63
   * @throws ConfigError for one out of range
   */
  moveTo(processId: number): void {
    this.#origin = originOf(this.#nodeId, processId);
  }

  /**
   * More than 512 ids in one millisecond borrow from the next ones, so that no id repeats and none waits.
   * @throws ConfigError when the time is outside what the ids can say
   */
  next(): bigint {
    const ms = BigInt(Math.floor(this.#clock.now() + this.#offsetMs));
    if (ms > this.#lastMs) {
      this.#lastMs = ms;
      this.#counter = 0n;
    } else if (++this.#counter === COUNTER_LIMIT) {
      this.#lastMs += 1n;
      this.#counter = 0n;
    }
    const id = (this.#lastMs << (NODE_BITS + PROCESS_BITS + COUNTER_BITS)) | this.#origin | this.#counter;
    if (id < GLOBAL_ID_BASE || this.#lastMs >= MS_LIMIT) {
      throw new ConfigError(
        `request ids: ${this.#lastMs} ms since their epoch is out of range; check the system time, unixTimeAtOriginMs and epochMs`,
      );
    }
    return id;
  }
}

function originOf(nodeId: number, processId: number): bigint {
  inRange('processId', processId, PROCESS_COUNT);
  return (BigInt(nodeId) << (PROCESS_BITS + COUNTER_BITS)) | (BigInt(processId) << COUNTER_BITS);
}

function inRange(name: string, value: number, limit: number): void {
  if (!Number.isInteger(value) || value < 0 || value >= limit) {
    throw new ConfigError(`${name} is ${value}; it must be an integer from 0 to ${limit - 1}`);
  }
}
