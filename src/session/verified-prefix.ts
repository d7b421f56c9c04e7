/** Slices that arrived before an earlier one did; beyond it the newest is forgotten, which only makes the prefix shorter. */
const MAX_PENDING = 64;

interface Slice {
  readonly begin: number;
  readonly end: number;
  readonly bytes: number;
}

/**
 * Role: how far the slices that one writer delivered cover the prompt without a gap. They are reported in any order, again, or not at all.
 * Invariant: every block is counted by one slice. The slices of a writer never overlap: one that does is not believed.
 */
export class VerifiedPrefix {
  #end = 0;
  #bytes = 0;
  readonly #pending: Slice[] = [];

  /** Block ordinal of the writer up to which everything arrived. */
  get endBlock(): number {
    return this.#end;
  }

  /** What the writer says that the slices up to there moved. */
  get bytes(): number {
    return this.#bytes;
  }

  add(begin: number, end: number, bytes: number): void {
    if (begin > this.#end) {
      if (this.#pending.length < MAX_PENDING) this.#pending.push({ begin, end, bytes });
      return;
    }
    this.#take({ begin, end, bytes });
    for (let next = this.#nextPending(); next >= 0; next = this.#nextPending())
      this.#take(this.#pending.splice(next, 1)[0] as Slice);
  }

  #take({ begin, end, bytes }: Slice): void {
    if (begin !== this.#end || end <= begin) return;
    this.#end = end;
    this.#bytes += bytes;
  }

  #nextPending(): number {
    return this.#pending.findIndex(({ begin }) => begin <= this.#end);
  }
}
