/** Slices that arrived before an earlier one did; beyond it the newest is forgotten, which only makes the prefix shorter. */
const MAX_PENDING = 64;

/** Role: how far the slices that one writer delivered cover the prompt without a gap. They are reported in any order, or not at all. */
export class VerifiedPrefix {
  #end = 0;
  readonly #pending: { readonly begin: number; readonly end: number }[] = [];

  /** Block ordinal of the writer up to which everything arrived. */
  get endBlock(): number {
    return this.#end;
  }

  add(begin: number, end: number): void {
    if (begin > this.#end) {
      if (this.#pending.length < MAX_PENDING) this.#pending.push({ begin, end });
      return;
    }
    this.#end = Math.max(this.#end, end);
    for (let next = this.#nextPending(); next >= 0; next = this.#nextPending()) {
      const [slice] = this.#pending.splice(next, 1);
      this.#end = Math.max(this.#end, slice?.end ?? 0);
    }
  }

  #nextPending(): number {
    return this.#pending.findIndex(({ begin }) => begin <= this.#end);
  }
}
