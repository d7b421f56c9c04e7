/** Against hangs only: nothing that a test waits for takes so long, on a machine that is busy with other things either. */
export const HANG_LIMIT_MS = 60_000;

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

/** Looks again until it holds: for what nobody tells of. Rejects with `describe()` at the limit. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  describe: () => string,
  limitMs = HANG_LIMIT_MS,
): Promise<void> {
  const endMs = performance.now() + limitMs;
  while (!(await holds())) {
    if (performance.now() > endMs) throw new Error(`not within ${limitMs} ms: ${describe()}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
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
  async waitFor(count: number, limitMs = HANG_LIMIT_MS): Promise<readonly T[]> {
    if (this.values.length < count) {
      const arrived = new Promise<void>((resolve) => this.#waiting.push({ count, resolve }));
      await withDeadline(arrived, limitMs, () => `${this.values.length} of ${count} values came`);
    }
    return this.values;
  }
}
