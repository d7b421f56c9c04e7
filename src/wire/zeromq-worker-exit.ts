import { isMainThread } from 'node:worker_threads';

const closers = new Set<() => void>();
let hooked = false;

/**
 * Runs `close` when this worker thread ends by `process.exit` with sockets still open. Without it the ZeroMQ binding settles pending
 * promises of a thread that no longer runs JavaScript, and aborts the whole process (zeromq.js issue 411). A worker that is
 * terminated from outside runs no JavaScript any more, so its messenger must be closed before. The main thread is not affected.
 * @returns a function that takes `close` back
 */
export function onWorkerExit(close: () => void): () => void {
  if (isMainThread) return () => undefined;
  if (!hooked) {
    hooked = true;
    process.once('exit', () => {
      for (const closer of closers) closer();
    });
  }
  closers.add(close);
  return () => closers.delete(close);
}
