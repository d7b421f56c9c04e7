import { ArgumentError } from '../errors.js';
import type { PlanStats } from '../mapping/transfer-plan.js';
import type { FragmentTable } from './transfer-agent.js';

/** The bounce path of an agent: many small pieces travel packed, through an arena on both sides. */
export interface BounceOptions {
  /** One arena for both roles. It must hold two of the largest chunk, each rounded up to a power of two. */
  readonly sizeBytes: number;
  /** Bytes. Both sides of a pair must have the same. Default: 32 MiB. */
  readonly maxChunkSize?: number;
  /**
   * A slice is bounced from so many descriptors on ... Default: 1024 for host memory; for memory of a GPU none: whichever of `bounce` and
   * `rdma` costs less is taken. Setting this or the next has both decide for either memory.
   */
  readonly minDescriptorCount?: number;
  /** ... of at most so many bytes on average. Default: 16 KiB, as above. */
  readonly maxAverageDescriptorSize?: number;
  /** Regions of the receiver's arena that one receive may hold at a time. Default: 8. */
  readonly maxInflightChunksPerRequest?: number;
  /** A slice that makes no progress for so long fails. Default: 30000. */
  readonly requestTimeoutMs?: number;
  /** Bound on the thread blocks of a gather or scatter on a GPU. Default: 16. */
  readonly gatherBlocks?: number;
  /** Bounces every slice that has a ticket; for tests. Default: false. */
  readonly isForced?: boolean;
}

/** Slots that slices under one ticket may be scattered into by this side. */
export interface InboundGroup {
  /** What the writer's `SubmissionGroup.key` says: 0 .. 2^32 - 1, unique in the ticket. */
  readonly key: number;
  /** Of `prepareInbound`. */
  readonly fragments: FragmentTable;
  readonly slots: Int32Array;
}

/** `hasThresholds`: one of them was set, so that they decide and not the costs. */
export type ResolvedBounce = Required<BounceOptions> & { readonly hasThresholds: boolean };

const DEFAULTS = {
  maxChunkSize: 32 << 20,
  minDescriptorCount: 1024,
  maxAverageDescriptorSize: 16 << 10,
  maxInflightChunksPerRequest: 8,
  requestTimeoutMs: 30_000,
  gatherBlocks: 16,
  isForced: false,
} as const;

/** @throws ArgumentError for a number that is not a whole one from 1 on; what does not fit together native code refuses */
export function resolveBounce(options: BounceOptions): ResolvedBounce {
  const hasThresholds = options.minDescriptorCount !== undefined || options.maxAverageDescriptorSize !== undefined;
  const resolved = { ...DEFAULTS, ...options, hasThresholds };
  for (const [name, value] of Object.entries(resolved)) {
    if (typeof value === 'boolean') continue;
    if (!Number.isSafeInteger(value) || (value as number) < 1) {
      throw new ArgumentError(`bounce.${name} must be a whole number from 1 on, not ${value}`);
    }
  }
  if (resolved.gatherBlocks > 1024)
    throw new ArgumentError(`bounce.gatherBlocks must be a whole number from 1 to 1024, not ${resolved.gatherBlocks}`);
  return resolved;
}

/** Read by native/addon/bounce_records.cc; empty = no arena. */
export function bounceRecord(bounce: ResolvedBounce | null): Float64Array {
  if (bounce === null) return new Float64Array(0);
  return Float64Array.of(
    bounce.sizeBytes,
    bounce.maxChunkSize,
    bounce.minDescriptorCount,
    bounce.maxAverageDescriptorSize,
    bounce.maxInflightChunksPerRequest,
    bounce.requestTimeoutMs,
    bounce.gatherBlocks,
    bounce.isForced ? 1 : 0,
    bounce.hasThresholds ? 1 : 0,
  );
}

/** Key, table and slot count of each group, and all slots; read by native/addon/native_agent_inbound.cc. */
export function inboundRecords(groups: readonly InboundGroup[]): readonly [Float64Array, Int32Array] {
  const records = new Float64Array(3 * groups.length);
  const slots = new Int32Array(groups.reduce((sum, group) => sum + group.slots.length, 0));
  let at = 0;
  groups.forEach((group, i) => {
    records.set([group.key, group.fragments, group.slots.length], 3 * i);
    slots.set(group.slots, at);
    at += group.slots.length;
  });
  return [records, slots];
}

/** Whether the thresholds bounce a slice with these counts, and why; what native code decides for a slice under a ticket. */
export function bounceVerdict(
  bounce: ResolvedBounce,
  { coalescedDescriptors, bytes }: Pick<PlanStats, 'coalescedDescriptors' | 'bytes'>,
): { readonly isBounced: boolean; readonly reason: string } {
  const { minDescriptorCount, maxAverageDescriptorSize } = bounce;
  if (bounce.isForced) return { isBounced: true, reason: 'bounce is forced' };
  const isSmall = coalescedDescriptors * maxAverageDescriptorSize >= bytes;
  const isBounced = coalescedDescriptors >= minDescriptorCount && isSmall;
  const average = coalescedDescriptors === 0 ? 0 : Math.round(bytes / coalescedDescriptors);
  const reason =
    `${coalescedDescriptors} descriptors of ${average} bytes on average; bounced from ${minDescriptorCount} ` +
    `of at most ${maxAverageDescriptorSize} bytes on`;
  return { isBounced, reason };
}
