import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { HANG_LIMIT_MS, withDeadline } from './deadline.js';

/** A whole run of the bench has several processes and phases. */
const CLI_LIMIT_MS = 2 * HANG_LIMIT_MS;
const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

export interface CliResult {
  /** Exit code, or the signal that ended it. */
  readonly code: number | string;
  readonly stdout: string;
  readonly stderr: string;
}

/** `kv-transceiver ARGS` in a process of its own. */
export class Cli {
  readonly process: ChildProcess;
  readonly #exit: Promise<number | string>;
  #stdout = '';
  #stderr = '';
  #watchers: (() => void)[] = [];

  constructor(args: readonly string[]) {
    this.process = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
    const collect = (add: (text: string) => void) => (chunk: Buffer) => {
      add(chunk.toString());
      for (const watcher of this.#watchers) watcher();
    };
    this.process.stdout?.on(
      'data',
      collect((text) => (this.#stdout += text)),
    );
    this.process.stderr?.on(
      'data',
      collect((text) => (this.#stderr += text)),
    );
    this.#exit = new Promise((resolve) =>
      this.process.on('close', (code, signal) => resolve(code ?? signal ?? 'unknown')),
    );
  }

  get stderr(): string {
    return this.#stderr;
  }

  result(limitMs = CLI_LIMIT_MS): Promise<CliResult> {
    const result = this.#exit.then((code) => ({ code, stdout: this.#stdout, stderr: this.#stderr }));
    return withDeadline(result, limitMs, () => `the command still runs; stderr: ${this.#stderr}`);
  }

  async untilStderr(pattern: RegExp, limitMs = HANG_LIMIT_MS): Promise<void> {
    const seen = new Promise<void>((resolve, reject) => {
      const look = (): void => {
        if (pattern.test(this.#stderr)) resolve();
      };
      this.#watchers.push(look);
      look();
      void this.#exit.then((code) => reject(new Error(`ended with ${code}: ${this.#stderr}`)));
    });
    await withDeadline(seen, limitMs, () => `${pattern} did not come; stderr: ${this.#stderr}`);
  }

  /** Processes it started and that still live, with the words of their command lines. */
  children(): readonly { readonly pid: number; readonly words: readonly string[] }[] {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .flatMap((name) => {
        try {
          const parent = Number(/\) \S+ (\d+)/.exec(readFileSync(`/proc/${name}/stat`, 'utf8'))?.[1]);
          if (parent !== this.process.pid) return [];
          return [{ pid: Number(name), words: readFileSync(`/proc/${name}/cmdline`, 'utf8').split('\0') }];
        } catch {
          // It ended while we looked.
          return [];
        }
      });
  }
}

export function runCli(args: readonly string[], limitMs = CLI_LIMIT_MS): Promise<CliResult> {
  return new Cli(args).result(limitMs);
}

/** Whether a process of that id exists and is no zombie. */
export function isAlive(pid: number): boolean {
  try {
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}
