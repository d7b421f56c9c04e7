import { WireError } from '../../src/errors.js';
import { explainCompatibility } from '../../src/mapping/compatibility.js';
import type { RankInfo } from '../../src/mapping/rank-info.js';
import { decodeFrame } from '../../src/wire/frame-codec.js';
import type { Frame } from '../../src/wire/messages.js';
import { WIRE_REASONS } from '../../src/wire/wire-reason.js';
import { Random } from '../sim/core/random.js';
import { decodedSizeBytes } from './decoded-size.js';
import { frameCorpus } from './frame-corpus.js';
import { mutateFrame } from './mutate-frame.js';
import { countReads } from './step-counter.js';

/** Reads of a frame: once to check msgpack, once to build it; a fixed field of several bytes is one. */
const READS_PER_BYTE = 3;
/** One byte of msgpack can be an entry of a list, or a short text. */
const DECODED_PER_BYTE = 64;
const FIXED_ALLOWANCE = 2048;
/** Steps and sizes are looked at in one of so many frames; exceptions in all. */
const INSPECT_EVERY = 16;
/** Heap after garbage collection may differ by this between a tenth and all of the run. */
const HEAP_SLACK_BYTES = 6 * 1024 * 1024;

export interface FrameFuzzResult {
  readonly frames: number;
  readonly decoded: number;
  readonly refused: Readonly<Record<string, number>>;
  readonly maxReadsPerByte: number;
  readonly maxDecodedPerByte: number;
  readonly compatibilityChecks: number;
  readonly heapGrowthBytes: number;
  readonly elapsedMs: number;
}

export interface FrameFuzzOptions {
  readonly frames: number;
  readonly seed: number;
  readonly collectGarbage: () => void;
  readonly nowMs: () => number;
  readonly onProgress?: (frames: number) => void;
}

/**
 * Decodes mutated frames. Only a frame or a WireError with a known reason may come out; reads and decoded sizes stay in proportion to the
 * frame; the heap stays flat. A RankInfo that gets through is compared with our own, both ways, which may never throw.
 * @throws Error with seed, number and bytes of the frame that broke a rule
 */
export function fuzzFrames(options: FrameFuzzOptions): FrameFuzzResult {
  const { stackTraceLimit } = Error;
  // Most frames end in an error, and its stack would cost more than the frame.
  Error.stackTraceLimit = 0;
  try {
    return fuzz(options);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}

function fuzz(options: FrameFuzzOptions): FrameFuzzResult {
  const { frames, seed, collectGarbage, nowMs, onProgress } = options;
  const corpus = frameCorpus(seed);
  const own = ownRankInfo(seed);
  const random = new Random(seed);
  const refused: Record<string, number> = Object.fromEntries(WIRE_REASONS.map((reason) => [reason, 0]));
  const result = { decoded: 0, maxReadsPerByte: 0, maxDecodedPerByte: 0, compatibilityChecks: 0 };
  const startedAtMs = nowMs();
  let heapAtTenth = 0;
  for (let number = 0; number < frames; number++) {
    const bytes = mutateFrame(random, corpus);
    try {
      const inspect = number % INSPECT_EVERY === 0;
      const frame = inspect ? inspected(bytes, result) : decodeFrame(bytes);
      result.decoded++;
      const info = rankInfoOf(frame);
      if (info !== null) {
        result.compatibilityChecks++;
        explainCompatibility(own, info);
        explainCompatibility(info, own);
      }
    } catch (error) {
      const count = error instanceof WireError ? refused[error.reason] : undefined;
      if (count === undefined) throw brokenRule(seed, number, bytes, error);
      refused[(error as WireError).reason] = count + 1;
    }
    if (number + 1 === Math.ceil(frames / 10)) heapAtTenth = heapBytes(collectGarbage);
    if ((number + 1) % 1_000_000 === 0) onProgress?.(number + 1);
  }
  const heapGrowthBytes = heapBytes(collectGarbage) - heapAtTenth;
  if (heapGrowthBytes > HEAP_SLACK_BYTES) throw new Error(`the heap grew by ${heapGrowthBytes} bytes (seed ${seed})`);
  const total = Object.values(refused).reduce((sum, count) => sum + count, result.decoded);
  if (total !== frames) throw new Error(`${frames} frames, but ${total} are accounted for`);
  return { frames, ...result, refused, heapGrowthBytes, elapsedMs: nowMs() - startedAtMs };
}

function inspected(bytes: Uint8Array, result: { maxReadsPerByte: number; maxDecodedPerByte: number }): Frame {
  let frame: Frame | null = null;
  const reads = countReads(
    () => {
      frame = decodeFrame(bytes);
    },
    READS_PER_BYTE * bytes.length + FIXED_ALLOWANCE,
  );
  const size = decodedSizeBytes(frame);
  if (size > DECODED_PER_BYTE * bytes.length + FIXED_ALLOWANCE) throw new Error(`decodes to ${size} bytes`);
  result.maxReadsPerByte = Math.max(result.maxReadsPerByte, reads / bytes.length);
  result.maxDecodedPerByte = Math.max(result.maxDecodedPerByte, size / bytes.length);
  return frame as unknown as Frame;
}

function rankInfoOf({ message }: Frame): RankInfo | null {
  if (message.type === 'HELLO') return message.rankInfo;
  return message.type === 'HELLO_ACK' && message.answer.accepted ? message.answer.rankInfo : null;
}

function ownRankInfo(seed: number): RankInfo {
  for (const { type, bytes } of frameCorpus(seed + 1)) {
    const { message } = decodeFrame(bytes);
    if (type === 'HELLO' && message.type === 'HELLO' && message.rankInfo.pageTable.layerGroups.length > 0)
      return message.rankInfo;
  }
  throw new Error(`no HELLO with a layer group in the corpus of seed ${seed + 1}`);
}

function heapBytes(collectGarbage: () => void): number {
  collectGarbage();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  return heapUsed + arrayBuffers;
}

function brokenRule(seed: number, number: number, bytes: Uint8Array, cause: unknown): Error {
  const text = cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause);
  return new Error(`frame ${number} of seed ${seed}: ${text}\n${Buffer.from(bytes).toString('hex')}`, { cause });
}
