import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { PeerLostError, StateError } from '../../../errors.js';
import { WorkerFailedError } from './worker-failed-error.js';
import type { ServerDescription, WorkerCommand, WorkerEvent, WorkerSettings } from './worker-messages.js';

const WORKER_ENTRY = fileURLToPath(new URL('./worker-entry.js', import.meta.url));

type Role = WorkerSettings['role'];

interface Waiter {
  readonly matches: (event: WorkerEvent) => boolean;
  readonly resolve: (event: WorkerEvent) => void;
  readonly reject: (error: Error) => void;
}

/**
 * Role: one server of the bench in its own process, seen from the driver.
 * Ownership: owns the child; `stop` leaves no process behind, whatever state it is in.
 */
export class WorkerProcess {
  readonly role: Role;
  readonly #child: ChildProcess;
  readonly #waiters = new Set<Waiter>();
  #listener: (event: WorkerEvent) => void = () => {};
  #lossListener: (error: Error) => void = () => {};
  /** Why no more answers will come; null while the child serves. */
  #loss: Error | null = null;
  #stopping = false;

  constructor(role: Role) {
    this.role = role;
    this.#child = fork(WORKER_ENTRY, [role], {
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    });
    this.#child.on('message', (event) => this.#receive(event as WorkerEvent));
    this.#child.on('error', (error) =>
      this.#lose(new StateError(`the ${role} process failed: ${error.message}`, { cause: error })),
    );
    this.#child.on('exit', (code, signal) => {
      const how = signal === null ? `ended with code ${code}` : `was ended by ${signal}`;
      this.#lose(
        new PeerLostError(`the ${role} process (pid ${this.#child.pid}) ${how}`, { peer: role, drained: true }),
      );
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  /** Events that belong to no call: first tokens and outcomes. */
  onEvent(listener: (event: WorkerEvent) => void): void {
    this.#listener = listener;
  }

  /** Called once, when the child cannot answer any more and nobody asked it to stop. */
  onLoss(listener: (error: Error) => void): void {
    this.#lossListener = listener;
    if (this.#loss !== null) listener(this.#loss);
  }

  send(command: WorkerCommand): void {
    if (this.#loss !== null) throw this.#loss;
    // A closed channel is reported by 'exit'; the callback keeps it from being thrown as well.
    this.#child.send(command, () => {});
  }

  /** To a child that may be gone. */
  trySend(command: WorkerCommand): void {
    if (this.#loss === null) this.send(command);
  }

  async start(settings: WorkerSettings): Promise<Extract<WorkerEvent, { kind: 'ready' }>> {
    return this.#ask({ kind: 'start', settings }, (event) => event.kind === 'ready');
  }

  async prepare(command: Extract<WorkerCommand, { kind: 'prepare' }>): Promise<void> {
    await this.#ask(command, (event) => event.kind === 'prepared' && event.key === command.key);
  }

  async restore(command: Extract<WorkerCommand, { kind: 'restore' }>): Promise<void> {
    await this.#ask(command, (event) => event.kind === 'prepared' && event.key === command.key);
  }

  async describe(): Promise<ServerDescription> {
    return this.#ask({ kind: 'describe' }, (event) => event.kind === 'described');
  }

  /** Asks the child to close what it has within `deadlineMs`, then ends it. Never throws. */
  async stop(deadlineMs: number): Promise<void> {
    this.#stopping = true;
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const exit = once(this.#child, 'exit');
    if (this.#child.connected) this.#child.send({ kind: 'stop', deadlineMs } satisfies WorkerCommand, () => {});
    const hardEnd = setTimeout(() => this.#child.kill('SIGKILL'), deadlineMs + Math.min(deadlineMs, 500));
    await exit;
    clearTimeout(hardEnd);
  }

  #ask<E extends WorkerEvent>(command: WorkerCommand, matches: (event: WorkerEvent) => boolean): Promise<E> {
    return new Promise<E>((resolve, reject) => {
      this.#waiters.add({ matches, resolve: (event) => resolve(event as E), reject });
      try {
        this.send(command);
      } catch (error) {
        reject(error as Error);
      }
    });
  }

  #receive(event: WorkerEvent): void {
    if (event.kind === 'fatal') {
      this.#lose(new WorkerFailedError(this.role, event.error));
      return;
    }
    for (const waiter of this.#waiters) {
      if (!waiter.matches(event)) continue;
      this.#waiters.delete(waiter);
      waiter.resolve(event);
      return;
    }
    this.#listener(event);
  }

  #lose(error: Error): void {
    if (this.#loss !== null) return;
    this.#loss = error;
    for (const waiter of this.#waiters) waiter.reject(error);
    this.#waiters.clear();
    if (!this.#stopping) this.#lossListener(error);
  }
}
