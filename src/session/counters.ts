/** Named counts of what happened; metrics read them. */
export class Counters {
  readonly #counts = new Map<string, number>();
  /** In order; null: one has come since. There are few, and they are asked for often. */
  #names: readonly string[] | null = null;
  /** Told of each addition; null: nobody watches. */
  onAdded: ((name: string) => void) | null = null;

  add(name: string, amount = 1): void {
    const count = this.#counts.get(name);
    if (count === undefined) this.#names = null;
    this.#counts.set(name, (count ?? 0) + amount);
    this.onAdded?.(name);
  }

  get(name: string): number {
    return this.#counts.get(name) ?? 0;
  }

  snapshot(): Readonly<Record<string, number>> {
    this.#names ??= [...this.#counts.keys()].sort();
    const counts: Record<string, number> = {};
    for (const name of this.#names) counts[name] = this.get(name);
    return counts;
  }
}
