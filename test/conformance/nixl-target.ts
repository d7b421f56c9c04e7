import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { CloseReport } from '../../src/agent/transfer-agent.js';
import { HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';

const PROGRAM = fileURLToPath(new URL('nixl-target.mjs', import.meta.url));
/** Compiled by `npm run build`: a child process has no TypeScript loader, and the addon is found from the package root. */
const AGENT_MODULE = fileURLToPath(new URL('../../dist/agent/native-agent.js', import.meta.url));

interface Hello {
  readonly name: string;
  readonly base: number;
  readonly metadata: Uint8Array;
}

/** A receiving agent with one pool in another process. */
export class NixlTarget {
  readonly hello: Hello;
  readonly exited: Promise<string>;
  readonly #process: ChildProcess;
  readonly #stderr: () => string;

  private constructor(process: ChildProcess, hello: Hello, exited: Promise<string>, stderr: () => string) {
    this.#process = process;
    this.hello = hello;
    this.exited = exited;
    this.#stderr = stderr;
  }

  static async start(poolBytes: number, env: Readonly<Record<string, string>>): Promise<NixlTarget> {
    const process = fork(PROGRAM, [AGENT_MODULE, String(poolBytes)], {
      env: { ...globalThis.process.env, ...env },
      execArgv: [],
      serialization: 'advanced',
      stdio: ['ignore', 'inherit', 'pipe', 'ipc'],
    });
    let stderr = '';
    process.stderr?.on('data', (chunk: Buffer) => {
      stderr += chunk.toString();
    });
    const exited = new Promise<string>((resolve) =>
      process.once('exit', (code, signal) => resolve(signal ?? `code ${code}`)),
    );
    const hello = await answer<Hello>(process, exited, () => stderr);
    return new NixlTarget(process, hello, exited, () => stderr);
  }

  async digest(): Promise<string> {
    return (await this.#ask<{ readonly digest: string }>('digest')).digest;
  }

  async close(): Promise<CloseReport> {
    return (await this.#ask<{ readonly report: CloseReport }>('close')).report;
  }

  signal(name: NodeJS.Signals): void {
    this.#process.kill(name);
  }

  #ask<T>(command: 'digest' | 'close'): Promise<T> {
    const reply = answer<T>(this.#process, this.exited, this.#stderr);
    this.#process.send(command);
    return reply;
  }
}

function answer<T>(process: ChildProcess, exited: Promise<string>, stderr: () => string): Promise<T> {
  return withDeadline(
    new Promise<T>((resolve, reject) => {
      process.once('message', (message) => resolve(message as T));
      void exited.then((how) => reject(new Error(`the target ended with ${how}: ${stderr()}`)));
    }),
    HANG_LIMIT_MS,
    () => `no answer from the target; stderr: ${stderr()}`,
  );
}
