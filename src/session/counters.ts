/** Named counts of what happened; metrics read them. */
export class Counters {
  readonly #counts = new Map<string, number>();
  /** Told of each addition; null: nobody watches. */
  onAdded: ((name: string) => void) | null = null;

  add(name: string, amount = 1): void {
    this.#counts.set(name, (this.#counts.get(name) ?? 0) + amount);
    this.onAdded?.(name);
  }

  get(name: string): number {
    return this.#counts.get(name) ?? 0;
  }

  snapshot(): Readonly<Record<string, number>> {
    return Object.fromEntries([...this.#counts].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}
