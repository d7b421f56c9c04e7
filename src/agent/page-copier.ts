/** A stretch of memory that an agent of this thread owns. */
export interface MemoryStretch {
  readonly base: number;
  readonly sizeBytes: number;
}

/** Bytes that one place takes over from another; places are offsets into stretches, by their index. */
export interface ByteCopy {
  readonly fromStretch: number;
  readonly fromOffset: number;
  readonly toStretch: number;
  readonly toOffset: number;
  readonly bytes: number;
}

/** Copies bytes between host pools and a GPU's, off the JS thread. */
export interface PageCopier {
  /**
   * One copy after another, in the order given. Calls run at the same time: whoever needs an order between two waits.
   * Settles when nothing of it is read or written any more, also when it rejects.
   * @throws TransportError when the device failed
   */
  copy(stretches: readonly MemoryStretch[], copies: readonly ByteCopy[]): Promise<void>;
}
