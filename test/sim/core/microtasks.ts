/**
 * Lets every pending promise callback run, synchronously: 0.15 us instead of the turn of the event loop that `setImmediate` costs, and
 * exact, whatever the depth of the chain. Only from a macrotask: a promise callback cannot drain the queue it is part of.
 */
const tickCallback = (process as unknown as { _tickCallback?: () => void })._tickCallback;

export function drainMicrotasks(): void {
  tickCallback?.();
}

/** Runs `work` where `drainMicrotasks` works. @throws when this Node does not offer it */
export function inMacrotask<T>(work: () => T): Promise<T> {
  return new Promise((resolve, reject) => {
    setImmediate(() => {
      try {
        let drained = false;
        queueMicrotask(() => {
          drained = true;
        });
        drainMicrotasks();
        if (!drained) throw new Error(`node ${process.version} cannot drain its microtask queue on request`);
        resolve(work());
      } catch (error) {
        reject(error instanceof Error ? error : new Error(String(error)));
      }
    });
  });
}
