import { fork } from 'node:child_process';
import { once } from 'node:events';
import { constants } from 'node:os';
import { StateError } from '../../../errors.js';
import { workerArguments } from '../../../serve/worker-arguments.js';

/**
 * Runs this command again, in a process with the Node arguments of a `serve` worker: turns are measured as they are there.
 * Ownership: the process ends when this one does, however that is.
 * @returns its exit code; null: this process has those arguments, and goes on by itself
 */
export async function runAsWorker(): Promise<number | null> {
  const wanted = workerArguments();
  if (wanted.length === process.execArgv.length) {
    endWithParent();
    return null;
  }
  const [, program, ...args] = process.argv;
  if (program === undefined) throw new StateError('this process was started without a program: run the CLI');
  const child = fork(program, args, { execArgv: wanted, stdio: ['inherit', 'inherit', 'inherit', 'ipc'] });
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal));
  const [code, signal] = (await once(child, 'exit')) as [number | null, NodeJS.Signals | null];
  return code ?? 128 + (signal === null ? 0 : constants.signals[signal]);
}

function endWithParent(): void {
  if (process.channel === undefined || process.channel === null) return;
  process.once('disconnect', () => process.exit(1));
  // A listener alone would keep the process alive.
  process.channel.unref();
}
