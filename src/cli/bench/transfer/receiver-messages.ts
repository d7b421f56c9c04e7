/** Sender to receiver. */
export type ReceiverCommand =
  | { readonly kind: 'open'; readonly agent: 'host' | 'nixl'; readonly sizeBytes: number }
  | {
      readonly kind: 'verify';
      readonly agent: 'host' | 'nixl';
      readonly pageBytes: number;
      readonly slotCount: number;
      readonly slots: Int32Array;
      readonly seed: number;
    };

/** Receiver to sender: one answer per command, in order. */
export type ReceiverAnswer =
  | { readonly kind: 'opened'; readonly metadata: Uint8Array; readonly base: number }
  | { readonly kind: 'verified'; readonly bytesChecked: number; readonly wrongBytes: number }
  | { readonly kind: 'failed'; readonly message: string; readonly code: string };
