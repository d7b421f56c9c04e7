import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';
import { type Child, startChild } from '../../support/child.js';
import { isAlive } from '../../support/cli.js';
import { until } from '../../support/deadline.js';

const MAIN = fileURLToPath(new URL('../../../dist/cli/main.js', import.meta.url));
const HELD_ENGINE = fileURLToPath(new URL('held-engine.mjs', import.meta.url));

export const ENGINE = { max_model_tokens: 512, tokens_per_block: 8, cache_tokens: 8192 };

/** One worker as `/health` has it. */
export interface WorkerHealth {
  readonly name: string;
  readonly phase: string;
  readonly reason: string;
  readonly liveRequests: number;
  readonly pid: number;
}

/** Processes and files of one test; `end` leaves none behind. */
export class Served {
  /** Beside the environment of the tests. */
  env: Readonly<Record<string, string>> = {};
  readonly folder = mkdtempSync(join(tmpdir(), 'serve-test-'));
  readonly #children: Child[] = [];
  readonly #workers = new Set<number>();

  file(name: string, content: unknown, mode = 0o644): string {
    const path = join(this.folder, name);
    writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content), { mode });
    return path;
  }

  /** `engine` of a configuration whose answers stop after their first tokens until `open`, and the words that go with it. */
  held(): { readonly engine: object; readonly words: readonly string[]; close(): void; open(): void } {
    const gate = join(this.folder, 'gate');
    const close = (): void => writeFileSync(gate, '');
    close();
    const open = (): void => rmSync(gate);
    return { engine: { ...ENGINE, gate }, words: ['--engine', HELD_ENGINE], close, open };
  }

  async run(...args: readonly string[]): Promise<Child> {
    const child = await startChild([MAIN, ...args], this.env);
    this.#children.push(child);
    return child;
  }

  /** `serve` from a configuration; JSON is YAML. */
  async front(config: object, ...more: readonly string[]): Promise<Front> {
    const file = this.file('serve.yaml', config);
    // Tests look at what was counted a moment ago.
    const child = await this.run('serve', '--config', file, '--port', '0', '--metrics-age-ms', '0', ...more);
    const front = new Front(child);
    for (const { pid } of await front.workers()) if (pid > 0) this.#workers.add(pid);
    return front;
  }

  end(): void {
    for (const child of this.#children) child.kill('SIGKILL');
    // Orphans that a failed test may have left.
    for (const pid of this.#workers) if (isAlive(pid)) process.kill(pid, 'SIGKILL');
    rmSync(this.folder, { recursive: true });
  }
}

export class Front {
  readonly child: Child;
  readonly url: string;
  readonly client: OpenAI;

  constructor(child: Child) {
    this.child = child;
    const address = /http:\/\/127\.0\.0\.1:\d+/.exec(child.firstLine)?.[0];
    if (address === undefined) throw new Error(`no address in ${child.firstLine}`);
    this.url = address;
    this.client = new OpenAI({ baseURL: `${address}/v1`, apiKey: 'none', maxRetries: 0 });
  }

  async health(): Promise<{ status: string; context: WorkerHealth[]; generation: WorkerHealth[]; code: number }> {
    const response = await fetch(`${this.url}/health`);
    return { ...((await response.json()) as Awaited<ReturnType<Front['health']>>), code: response.status };
  }

  async workers(): Promise<readonly WorkerHealth[]> {
    const { context, generation } = await this.health();
    return [...context, ...generation];
  }

  async metrics(): Promise<string> {
    return (await fetch(`${this.url}/metrics`)).text();
  }

  /** The sum of the samples whose lines begin so and have all of `parts`; NaN without any. */
  async metric(begin: string, ...parts: readonly string[]): Promise<number> {
    const lines = (await this.metrics())
      .split('\n')
      .filter((line) => line.startsWith(begin) && parts.every((part) => line.includes(part)));
    if (lines.length === 0) return Number.NaN;
    return lines.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0);
  }

  /** Looks again until the health is as wanted. */
  async untilHealth(wanted: (health: Awaited<ReturnType<Front['health']>>) => boolean): Promise<void> {
    let health = await this.health();
    await until(
      async () => {
        health = await this.health();
        return wanted(health);
      },
      () => `health stays ${JSON.stringify(health)}`,
    );
  }
}

/** Both sides on this machine. */
export function localConfig(
  more: { readonly context?: object; readonly generation?: object; readonly top?: object } = {},
) {
  return {
    schedule_style: 'generation_first',
    max_num_tokens: 24,
    engine: ENGINE,
    cache_transceiver_config: { backend: 'HOST' },
    context_servers: { cache_transceiver_config: { enable_pipelined_transfer: true }, ...more.context },
    generation_servers: { ...more.generation },
    ...more.top,
  };
}
