/** A label whose values come from names in the code: the first `most` of them, then `other`. */
export class BoundedLabel {
  readonly #known = new Set<string>();
  readonly #most: number;

  constructor(most: number) {
    this.#most = most;
  }

  of(value: string): string {
    if (this.#known.has(value)) return value;
    if (this.#known.size >= this.#most) return 'other';
    this.#known.add(value);
    return value;
  }
}
