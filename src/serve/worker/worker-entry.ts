// Entry of a worker process that the front started.
import { KvTransceiverError } from '../../errors.js';
import { sectionProblems } from '../located-error.js';
import { serveLog } from '../serve-log.js';
import { ServeWorker } from './serve-worker.js';
import type { WorkerCommand, WorkerNotice } from './worker-channel.js';

/** Without a front nobody waits for a clean end. */
const ORPHAN_CLOSE_MS = 1000;
/** For those who end it from outside. */
const DRAIN_LIMIT_MS = 60_000;

let worker: ServeWorker | null = null;
let ending = false;

function say(notice: WorkerNotice): void {
  if (process.connected) process.send?.(notice);
}

/** @param drainMs how long requests under way may take to end */
async function end(drainMs: number, code: number): Promise<void> {
  if (ending) return;
  ending = true;
  // Also when something in the close hangs: the front counts on the process to end.
  setTimeout(() => process.exit(code), drainMs + 2 * ORPHAN_CLOSE_MS).unref();
  try {
    if (drainMs > 0 && worker !== null) {
      await Promise.race([worker.drain(), new Promise((resolve) => setTimeout(resolve, drainMs).unref())]);
    }
    await worker?.close(ORPHAN_CLOSE_MS);
  } finally {
    process.exit(code);
  }
}

async function obey(command: WorkerCommand): Promise<void> {
  if (command.kind === 'stop') {
    await end(command.deadlineMs, 0);
    return;
  }
  const log = serveLog(command.settings.logLevel, command.settings.name);
  const warn = (message: string): void => {
    // When the servers end together, losing the other one is no news.
    if (!ending) log.warn(message);
  };
  worker = await ServeWorker.open(command.settings, { ...log, warn });
  say({ kind: 'ready', endpoint: worker.endpoint });
}

function fail(error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  const retryable = !(error instanceof KvTransceiverError) || error.retryable;
  if (process.connected && process.send !== undefined)
    process.send(
      { kind: 'fatal', message, retryable, problems: sectionProblems(error) } satisfies WorkerNotice,
      () => void end(0, 1),
    );
  else void end(0, 1);
}

// Ctrl-C reaches the whole process group; the front decides when its workers end.
process.on('SIGINT', () => {});
process.on('SIGHUP', () => {});
// A reader that went away is the front's to notice.
process.stderr.on('error', () => {});
process.on('SIGTERM', () => void end(DRAIN_LIMIT_MS, 0));
// Also when the front was killed: the channel closes with it.
process.on('disconnect', () => void end(0, 1));
process.on('uncaughtException', fail);
process.on('unhandledRejection', fail);
process.on('message', (command) => void obey(command as WorkerCommand).catch(fail));
