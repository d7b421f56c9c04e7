import { type ChildProcess, spawn } from 'node:child_process';
import { HANG_LIMIT_MS, withDeadline } from '../../support/deadline.js';
import type {
  ChildMessage,
  ChunkNews,
  CloseNews,
  Inspection,
  LiveInstances,
  OpenReport,
  OutcomeNews,
  ServerCommand,
  ServerSettings,
  StreamReport,
  StreamSettings,
} from './server-messages.js';

/** The parent's end of one server process. */
export class ServerProcess {
  readonly child: ChildProcess;
  /** Exit code or signal. */
  readonly exited: Promise<number | string>;
  /** Every outcome it told, in order. */
  readonly outcomes: OutcomeNews[] = [];
  readonly chunks: ChunkNews[] = [];
  endpoint = '';
  readonly #calls = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>();
  readonly #ready: Promise<void>;
  #watchers: (() => void)[] = [];
  #nextCall = 1;
  #stderr = '';
  #end: number | string | null = null;

  /** @param prefix words in front of the command, such as those that enter a network namespace */
  constructor(entry: string, env: Readonly<Record<string, string>> = {}, prefix: readonly string[] = []) {
    const [command = process.execPath, ...words] = [...prefix, process.execPath, entry];
    this.child = spawn(command, words, {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      env: { ...process.env, ...env },
    });
    this.exited = new Promise((resolve) => {
      this.child.on('exit', (code, signal) => {
        const end = code ?? signal ?? 'unknown';
        // The exit may be seen before the last messages are read; the end of the channel comes after them.
        if (this.child.connected) this.child.once('disconnect', () => this.#ended(end));
        else this.#ended(end);
        resolve(end);
      });
    });
    this.child.stderr?.on('data', (chunk: Buffer) => {
      this.#stderr += chunk.toString();
    });
    this.#ready = new Promise((resolve, reject) => {
      this.child.on('message', (message: ChildMessage) => {
        if (message.kind === 'ready') resolve();
        else this.#onMessage(message);
      });
      void this.exited.then(() => reject(new Error(this.#describe('it ended before it was ready'))));
    });
    // Nobody may wait for it: a spare that is killed unused is no error.
    this.#ready.catch(() => {});
  }

  get pid(): number {
    return this.child.pid ?? 0;
  }

  get port(): number {
    return Number(this.endpoint.split(':')[2]);
  }

  async open(settings: ServerSettings): Promise<void> {
    await withDeadline(this.#ready, HANG_LIMIT_MS, () => this.#describe('it is not ready'));
    this.endpoint = ((await this.call({ kind: 'open', settings })) as OpenReport).endpoint;
  }

  call(command: ServerCommand, limitMs = HANG_LIMIT_MS): Promise<unknown> {
    const call = this.#nextCall++;
    const answered = new Promise<unknown>((resolve, reject) => {
      if (this.#end !== null) reject(new Error(this.#describe('it has ended')));
      else {
        this.#calls.set(call, { resolve, reject });
        // A process that was killed a moment ago: its exit, on its way, rejects the call.
        this.child.send({ call, command }, () => {});
      }
    });
    return withDeadline(answered, limitMs, () => this.#describe(`no answer to ${command.kind}`));
  }

  inspect(): Promise<Inspection> {
    return this.call({ kind: 'inspect' }) as Promise<Inspection>;
  }

  instances(): Promise<LiveInstances> {
    return this.call({ kind: 'instances' }) as Promise<LiveInstances>;
  }

  stream(stream: StreamSettings, limitMs: number): Promise<StreamReport> {
    return this.call({ kind: 'stream', stream }, limitMs) as Promise<StreamReport>;
  }

  close(): Promise<CloseNews> {
    return this.call({ kind: 'close' }) as Promise<CloseNews>;
  }

  outcomesOf(rid: string): readonly OutcomeNews[] {
    return this.outcomes.filter((outcome) => outcome.rid === rid);
  }

  async outcome(rid: string, limitMs = HANG_LIMIT_MS): Promise<OutcomeNews> {
    await this.until(() => this.outcomesOf(rid).length > 0, limitMs, `no outcome of request ${rid}`);
    return this.outcomesOf(rid)[0] as OutcomeNews;
  }

  async chunk(kind: ChunkNews['kind'], rid: string, chunk: number, limitMs = HANG_LIMIT_MS): Promise<void> {
    const came = (): boolean =>
      this.chunks.some((news) => news.kind === kind && news.rid === rid && news.chunk === chunk);
    await this.until(came, limitMs, `chunk ${chunk} of request ${rid} was not ${kind}`);
  }

  /** Resolves once `holds` does, looked at whenever something arrives. */
  async until(holds: () => boolean, limitMs: number, what: string): Promise<void> {
    const reached = new Promise<void>((resolve, reject) => {
      const look = (): boolean => {
        if (holds()) resolve();
        else if (this.#end !== null) reject(new Error(this.#describe(what)));
        else return false;
        return true;
      };
      const watch = (): void => {
        if (!look()) this.#watchers.push(watch);
      };
      watch();
    });
    await withDeadline(reached, limitMs, () => this.#describe(what));
  }

  signal(name: NodeJS.Signals): void {
    this.child.kill(name);
  }

  async kill(): Promise<void> {
    this.child.kill('SIGKILL');
    await this.exited;
  }

  #onMessage(message: Exclude<ChildMessage, { readonly kind: 'ready' }>): void {
    switch (message.kind) {
      case 'outcome':
        this.outcomes.push(message);
        break;
      case 'sent':
      case 'held':
        this.chunks.push(message);
        break;
      case 'reply':
        this.#taken(message.call)?.resolve(message.value);
        break;
      case 'refusal':
        this.#taken(message.call)?.reject(new Error(this.#describe(message.error)));
        break;
    }
    this.#notify();
  }

  #ended(how: number | string): void {
    this.#end = how;
    for (const { reject } of this.#calls.values()) reject(new Error(this.#describe('it ended')));
    this.#calls.clear();
    this.#notify();
  }

  #taken(call: number): { resolve: (value: unknown) => void; reject: (error: Error) => void } | undefined {
    const waiting = this.#calls.get(call);
    this.#calls.delete(call);
    return waiting;
  }

  #notify(): void {
    const watchers = this.#watchers;
    this.#watchers = [];
    for (const watch of watchers) watch();
  }

  #describe(what: string): string {
    const end = this.#end === null ? '' : `, ended with ${this.#end}`;
    return `${what} (process ${this.pid}${end}); outcomes: ${JSON.stringify(this.outcomes.slice(-6))}; stderr: ${this.#stderr.slice(-2000)}`;
  }
}
