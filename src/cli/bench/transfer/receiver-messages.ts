import type { BounceOptions } from '../../../agent/bounce.js';
import type { BounceStats } from '../../../agent/bounce-stats.js';

/** Which pages: of `pieceBytes` each, or `layers`, see layered-page-set.ts. Both processes make the same shape of it. */
export interface ShapeSpec {
  readonly kind: 'pages' | 'layers';
  readonly pieceBytes: number;
  readonly totalBytes: number;
}

/** Sender to receiver, about bounced slices. */
export type BounceCommand =
  | {
      readonly kind: 'open-bounce';
      readonly lane: string;
      readonly agent: 'host' | 'nixl';
      readonly device?: number;
      readonly sizeBytes: number;
      readonly bounce: BounceOptions;
    }
  | { readonly kind: 'meet'; readonly lane: string; readonly metadata: Uint8Array; readonly base: number }
  | {
      readonly kind: 'expect';
      readonly lane: string;
      readonly ticket: bigint;
      readonly shape: ShapeSpec;
      readonly slots: Int32Array;
    }
  | { readonly kind: 'end'; readonly lane: string; readonly ticket: bigint }
  | {
      readonly kind: 'check';
      readonly lane: string;
      readonly shape: ShapeSpec;
      readonly slots: Int32Array;
      readonly seed: number;
      /** Writes the content before, and gives a late writer this long to spoil it. */
      readonly canaryMs?: number;
    }
  | { readonly kind: 'stats'; readonly lane: string };

/** Sender to receiver. */
export type ReceiverCommand =
  | BounceCommand
  | {
      readonly kind: 'open';
      /** Names the agent in later commands. */
      readonly lane: string;
      readonly agent: 'host' | 'nixl';
      readonly path?: 'p2p' | 'rdma';
      /** The GPU of its pool; absent = host memory. */
      readonly device?: number;
      readonly sizeBytes: number;
    }
  | {
      readonly kind: 'verify';
      readonly lane: string;
      readonly pageBytes: number;
      readonly slotCount: number;
      readonly slots: Int32Array;
      readonly seed: number;
      /** The pages are a rank's share of larger ones, see split-page-set.ts. */
      readonly isSplit?: boolean;
      /** Writes the content before, and gives a late writer this long to spoil it. */
      readonly canaryMs?: number;
    };

/** Receiver to sender: one answer per command, in order. */
export type ReceiverAnswer =
  | { readonly kind: 'opened'; readonly metadata: Uint8Array; readonly base: number }
  /** `ms`: how long it took the agent. */
  | { readonly kind: 'done'; readonly ms: number }
  | { readonly kind: 'stats'; readonly stats: BounceStats | null }
  | { readonly kind: 'verified'; readonly bytesChecked: number; readonly wrongBytes: number }
  | { readonly kind: 'failed'; readonly message: string; readonly code: string };
