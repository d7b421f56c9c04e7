/**
 * Role: one outcome of a request from one for each rank of a side.
 * Invariant: exactly one of `onAll` and `onFailed` is called, once: `onAll` when every rank completed its part, `onFailed` at the first
 *   failure; what ranks say after either changes nothing.
 */
export class RankTally<T> {
  readonly #parts: (T | undefined)[];
  readonly #onAll: (parts: readonly T[]) => void;
  readonly #onFailed: (error: unknown) => void;
  #missing: number;
  #hasFailed = false;

  constructor(ranks: number, onAll: (parts: readonly T[]) => void, onFailed: (error: unknown) => void) {
    this.#parts = new Array(ranks).fill(undefined);
    this.#missing = ranks;
    this.#onAll = onAll;
    this.#onFailed = onFailed;
  }

  get hasFailed(): boolean {
    return this.#hasFailed;
  }

  complete(rank: number, part: T): void {
    if (this.#hasFailed) return;
    this.#parts[rank] = part;
    this.#missing -= 1;
    if (this.#missing === 0) this.#onAll(this.#parts as readonly T[]);
  }

  fail(error: unknown): void {
    if (this.#hasFailed || this.#missing === 0) return;
    this.#hasFailed = true;
    this.#onFailed(error);
  }
}
