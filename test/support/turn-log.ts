/** Counts the turns of the event loop until it is stopped, and notes in which of them something was done. */
export class TurnLog<T> {
  turn = 0;
  readonly doneIn: { readonly turn: number; readonly what: T }[] = [];
  #handle: NodeJS.Immediate;

  constructor() {
    const count = (): void => {
      this.turn += 1;
      this.#handle = setImmediate(count);
    };
    this.#handle = setImmediate(count);
  }

  done(what: T): void {
    this.doneIn.push({ turn: this.turn, what });
  }

  stop(): void {
    clearImmediate(this.#handle);
  }

  /** Most that was done within one turn. */
  get mostInATurn(): number {
    const counts = new Map<number, number>();
    for (const { turn } of this.doneIn) counts.set(turn, (counts.get(turn) ?? 0) + 1);
    return Math.max(0, ...counts.values());
  }
}

/** Keeps the thread busy for so long, as work does. */
export function workMs(ms: number): void {
  const endMs = performance.now() + ms;
  while (performance.now() < endMs);
}
