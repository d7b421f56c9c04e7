/** Rejects with `describe()` when `promise` has not settled within `limitMs`: a test that waits says what it saw instead of hanging. */
export async function withDeadline<T>(promise: Promise<T>, limitMs: number, describe: () => string): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${limitMs} ms: ${describe()}`)), limitMs);
  });
  try {
    return await Promise.race([promise, expired]);
  } finally {
    clearTimeout(timer);
  }
}

/** Values pushed by callbacks, awaited by count. */
export class Collector<T> {
  readonly values: T[] = [];
  #waiting: { readonly count: number; readonly resolve: () => void }[] = [];

  readonly push = (value: T): void => {
    this.values.push(value);
    this.#waiting = this.#waiting.filter(({ count, resolve }) => {
      if (this.values.length < count) return true;
      resolve();
      return false;
    });
  };

  /** Resolves once at least `count` values came. */
  async waitFor(count: number, limitMs = 5000): Promise<readonly T[]> {
    if (this.values.length < count) {
      const arrived = new Promise<void>((resolve) => this.#waiting.push({ count, resolve }));
      await withDeadline(arrived, limitMs, () => `${this.values.length} of ${count} values came`);
    }
    return this.values;
  }
}
