/**
 * Role: turns totals that sources count themselves into rises.
 * Why: several sources share one counter, and one that goes away must not take its total with it.
 */
export class CountedTotals {
  readonly #last = new Map<string, number>();

  /** @returns how much `name` has grown since it was last asked about; a source that started again counts from 0 */
  rise(name: string, total: number): number {
    const last = this.#last.get(name) ?? 0;
    this.#last.set(name, total);
    return total >= last ? total - last : total;
  }
}
