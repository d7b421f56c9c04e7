// Entry of a bench server's process: commands come over the IPC channel of `fork`.
import { BenchWorker, describeError } from './bench-worker.js';
import type { WorkerCommand, WorkerEvent } from './worker-messages.js';

/** Without a driver nobody waits for a clean end. */
const ORPHAN_CLOSE_MS = 1000;

let worker: BenchWorker | null = null;
let ending = false;

function say(event: WorkerEvent): void {
  if (process.connected) process.send?.(event);
}

/** The last words before `process.exit`, which would drop what the channel still holds. */
function sayAndFlush(event: WorkerEvent): Promise<void> {
  return new Promise((resolve) => {
    if (process.connected && process.send !== undefined) process.send(event, () => resolve());
    else resolve();
  });
}

async function end(deadlineMs: number, code: number): Promise<void> {
  if (ending) return;
  ending = true;
  // Also when something in the close hangs: the driver counts on the process to end.
  setTimeout(() => process.exit(code), deadlineMs + 250).unref();
  try {
    await sayAndFlush({ kind: 'stopped', drained: (await worker?.close(deadlineMs)) ?? true });
  } finally {
    process.exit(code);
  }
}

async function obey(command: WorkerCommand): Promise<void> {
  switch (command.kind) {
    case 'start':
      worker = await BenchWorker.open(command.settings, say);
      return;
    case 'prepare':
      await worker?.prepare(command);
      return;
    case 'restore':
      await worker?.restore(command);
      return;
    case 'submit':
      worker?.submit(command);
      return;
    case 'cancel':
      worker?.cancel(command.key);
      return;
    case 'describe':
      worker?.describe();
      return;
    case 'stop':
      await end(command.deadlineMs, 0);
  }
}

function fail(error: unknown): void {
  say({ kind: 'fatal', error: describeError(error) });
  void end(ORPHAN_CLOSE_MS, 1);
}

// Ctrl-C reaches the whole process group; the driver decides when the servers end.
process.on('SIGINT', () => {});
process.on('SIGHUP', () => {});
// A reader that went away is the driver's to notice: it ends both servers.
process.stderr.on('error', () => {});
process.on('SIGTERM', () => void end(ORPHAN_CLOSE_MS, 0));
process.on('disconnect', () => void end(ORPHAN_CLOSE_MS, 1));
process.on('uncaughtException', fail);
process.on('unhandledRejection', fail);
process.on('message', (command) => void obey(command as WorkerCommand).catch(fail));
