/**
 * Role: finds the first stop string in text that comes in pieces.
 * Ordering: text that may turn out to be the beginning of a stop string is held back; the rest goes out at once.
 */
export class StopMatcher {
  readonly #stops: readonly string[];
  readonly #longest: number;
  #held = '';
  #stopped = false;

  /** @param stops not empty strings */
  constructor(stops: readonly string[]) {
    this.#stops = stops;
    this.#longest = Math.max(0, ...stops.map(({ length }) => length));
  }

  /** A stop string was found: what comes later is not part of the answer. */
  get stopped(): boolean {
    return this.#stopped;
  }

  /** @returns text that is certainly part of the answer */
  push(text: string): string {
    if (this.#stopped) return '';
    if (this.#longest === 0) return text;
    const known = this.#held + text;
    const found = Math.min(...this.#stops.map((stop) => indexOrInfinity(known, stop)));
    if (found !== Infinity) {
      this.#stopped = true;
      this.#held = '';
      return known.slice(0, found);
    }
    const sure = known.length - this.#suspicious(known);
    this.#held = known.slice(sure);
    return known.slice(0, sure);
  }

  /** No more text comes. @returns what was held back */
  end(): string {
    const held = this.#held;
    this.#held = '';
    return held;
  }

  /** Characters at the end that begin some stop string. */
  #suspicious(text: string): number {
    for (let length = Math.min(this.#longest - 1, text.length); length > 0; length--) {
      const tail = text.slice(-length);
      if (this.#stops.some((stop) => stop.startsWith(tail))) return length;
    }
    return 0;
  }
}

function indexOrInfinity(text: string, part: string): number {
  const index = text.indexOf(part);
  return index < 0 ? Infinity : index;
}
