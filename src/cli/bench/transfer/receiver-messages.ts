/** Sender to receiver. */
export type ReceiverCommand =
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
  | { readonly kind: 'verified'; readonly bytesChecked: number; readonly wrongBytes: number }
  | { readonly kind: 'failed'; readonly message: string; readonly code: string };
