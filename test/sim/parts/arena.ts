/**
 * Role: the bounded memory of one rank that writers bounce through: a submission takes a region of it before it is posted, waits when there
 *   is none, and is scattered to its pages from there.
 * Ownership: a region is held until nothing can write it any more, whatever became of the request.
 */
export class Arena {
  readonly sizeBytes: number;
  usedBytes = 0;
  readonly #waiters = new Set<() => void>();

  constructor(sizeBytes: number) {
    this.sizeBytes = sizeBytes;
  }

  fits(bytes: number): boolean {
    return bytes <= this.sizeBytes;
  }

  /** False: no room now; `onRoom` is called once when some was given back. */
  take(bytes: number, onRoom: () => void): boolean {
    if (this.usedBytes + bytes > this.sizeBytes) {
      this.#waiters.add(onRoom);
      return false;
    }
    this.usedBytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.usedBytes -= bytes;
    const waiters = [...this.#waiters];
    this.#waiters.clear();
    for (const onRoom of waiters) onRoom();
  }
}
