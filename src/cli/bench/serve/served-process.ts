import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { StateError } from '../../../errors.js';

const MAIN = fileURLToPath(new URL('../../main.js', import.meta.url));

/** One worker as `/health` has it. */
export interface ServedWorker {
  readonly name: string;
  readonly phase: string;
  readonly pid: number;
}

/**
 * Role: `kv-transceiver serve` as a process, with its heap visible.
 * Ownership: owns the process; the workers are its own.
 */
export class ServedProcess {
  readonly port: number;
  readonly #child: ChildProcess;
  readonly #exited: Promise<number | string>;

  private constructor(child: ChildProcess, exited: Promise<number | string>, port: number) {
    this.#child = child;
    this.#exited = exited;
    this.port = port;
  }

  /** @throws StateError when it does not start */
  static async start(configFile: string, more: readonly string[]): Promise<ServedProcess> {
    const args = ['--expose-gc', MAIN, 'serve', '--config', configFile, '--port', '0', ...more];
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const exited = new Promise<number | string>((resolve) => {
      child.on('exit', (code, signal) => resolve(code ?? signal ?? 'unknown'));
    });
    const line = await Promise.race([
      new Promise<string>((resolve) => createInterface({ input: child.stdout }).once('line', resolve)),
      exited.then((how) => Promise.reject(new StateError(`serve ended with ${how} before it was ready`))),
    ]);
    return new ServedProcess(child, exited, Number(/:(\d+)\/v1/.exec(line)?.[1]));
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  async workers(role: 'context' | 'generation'): Promise<readonly ServedWorker[]> {
    const response = await fetch(`http://127.0.0.1:${this.port}/health`);
    return ((await response.json()) as Record<'context' | 'generation', readonly ServedWorker[]>)[role];
  }

  /** Samples by `name{labels}`. */
  async metrics(): Promise<ReadonlyMap<string, number>> {
    const response = await fetch(`http://127.0.0.1:${this.port}/metrics`);
    const lines = (await response.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'));
    return new Map(
      lines.map((line) => [line.slice(0, line.lastIndexOf(' ')), Number(line.slice(line.lastIndexOf(' ')))]),
    );
  }

  /** @returns its exit code, or the signal that ended it */
  stop(): Promise<number | string> {
    this.#child.kill('SIGTERM');
    return this.#exited;
  }

  kill(): void {
    this.#child.kill('SIGKILL');
  }
}
