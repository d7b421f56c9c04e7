/** Which ranks said something; knows when all have. */
export class RankSet {
  readonly #has: Uint8Array;
  #count = 0;

  constructor(size: number) {
    this.#has = new Uint8Array(size);
  }

  get isFull(): boolean {
    return this.#count === this.#has.length;
  }

  get isEmpty(): boolean {
    return this.#count === 0;
  }

  add(rank: number): void {
    if (this.#has[rank] !== 0) return;
    this.#has[rank] = 1;
    this.#count += 1;
  }

  has(rank: number): boolean {
    return this.#has[rank] === 1;
  }

  /** For messages: `rank 2`, `ranks 1, 3`. */
  describeMissing(): string {
    const missing = [...this.#has.keys()].filter((rank) => this.#has[rank] === 0);
    return `${missing.length === 1 ? 'rank' : 'ranks'} ${missing.join(', ')}`;
  }
}
