import type { ViewRole } from './page-table.js';

/** How often each (role, layer) was seen. Tables have up to 64 Ki of them, so that no key is built for each. */
export class LayerCounts {
  readonly #byRole = new Map<ViewRole, Map<number, number>>();

  /** @returns how often it was seen by now, this time included */
  add(role: ViewRole, layer: number): number {
    let layers = this.#byRole.get(role);
    if (layers === undefined) {
      layers = new Map();
      this.#byRole.set(role, layers);
    }
    const times = (layers.get(layer) ?? 0) + 1;
    layers.set(layer, times);
    return times;
  }
}
