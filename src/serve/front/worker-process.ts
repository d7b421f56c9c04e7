import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { ConfigProblem } from '../../config/index.js';
import type { WorkerCommand, WorkerNotice } from '../worker/worker-channel.js';
import type { WorkerSettings } from '../worker/worker-settings.js';
import { workerArguments } from '../worker-arguments.js';

const WORKER_ENTRY = fileURLToPath(new URL('../worker/worker-entry.js', import.meta.url));

/** Beyond the deadline that a worker is given. */
const KILL_AFTER_MS = 2500;

export interface WorkerProcessEvents {
  onReady(endpoint: string): void;
  /** Once, also when it could never be started. */
  onExit(exit: WorkerExit): void;
}

export interface WorkerExit {
  /** For people. */
  readonly how: string;
  /** Another try could only fail the same way. */
  readonly isFinal: boolean;
  /** Settings of its section that it cannot run with; null: none are to blame. */
  readonly problems: readonly ConfigProblem[] | null;
}

/** A process that was asked for; see `WorkerProcess`. */
export interface LaunchedWorker {
  readonly pid: number | undefined;
  stop(deadlineMs: number): void;
  kill(): void;
}

/**
 * Role: one worker in a process of its own.
 * Ownership: owns the child. A child whose parent is gone, killed included, sees its channel close and ends by itself.
 */
export class WorkerProcess implements LaunchedWorker {
  readonly #child: ChildProcess;
  #fatal: Extract<WorkerNotice, { kind: 'fatal' }> | null = null;
  #ended = false;

  constructor(settings: WorkerSettings, events: WorkerProcessEvents) {
    this.#child = fork(WORKER_ENTRY, [settings.name], {
      execArgv: workerArguments(),
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    const end = (how: string): void => {
      if (this.#ended) return;
      this.#ended = true;
      const { message, retryable, problems = null } = this.#fatal ?? {};
      events.onExit({ how: message ?? how, isFinal: retryable === false, problems });
    };
    this.#child.on('message', (message) => {
      const notice = message as WorkerNotice;
      if (notice.kind === 'ready') events.onReady(notice.endpoint);
      else this.#fatal = notice;
    });
    this.#child.on('error', (error) => end(`could not be started: ${error.message}`));
    this.#child.on('exit', (code, signal) =>
      end(signal === null ? `ended with code ${code}` : `was ended by ${signal}`),
    );
    this.#send({ kind: 'start', settings });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  stop(deadlineMs: number): void {
    this.#send({ kind: 'stop', deadlineMs });
    setTimeout(() => this.kill(), deadlineMs + KILL_AFTER_MS).unref();
  }

  kill(): void {
    if (!this.#ended) this.#child.kill('SIGKILL');
  }

  #send(command: WorkerCommand): void {
    // A closed channel is reported by 'exit'; the callback keeps it from being thrown as well.
    if (this.#child.connected) this.#child.send(command, () => {});
  }
}
