import { describe, expect, it } from 'vitest';
import type { TtftSample } from '../../../../src/cli/bench/output-contract.js';
import { type LoadClock, LoadRunner, type LoadTarget } from '../../../../src/cli/bench/trace/load-runner.js';
import type { PlannedRequest } from '../../../../src/cli/bench/ttft/workload.js';
import { sampleWith } from '../sample.js';

const planned = (request: number, arrivalMs: number): PlannedRequest => ({
  variant: 'pipelined',
  request,
  seed: 1n,
  prompt: { kind: 'random', seed: 1n, tokenCount: 1 },
  prefixHit: 0,
  contextWarmTokens: 0,
  generationWarmTokens: 0,
  maxTokens: 1,
  arrivalMs,
});

/** Time passes only while the runner sleeps; what is under way ends when the test, or the passing time, says so. */
class World implements LoadTarget, LoadClock {
  readonly log: string[] = [];
  readonly samples: string[] = [];
  #nowMs = 1000;
  readonly #running: { readonly endMs: number; readonly end: () => void; readonly fail: (error: Error) => void }[] = [];
  readonly #serviceMs: number;

  constructor(serviceMs: number) {
    this.#serviceMs = serviceMs;
  }

  now(): number {
    return this.#nowMs;
  }

  async sleep(delayMs: number, signal: AbortSignal): Promise<void> {
    await this.advance(delayMs);
    signal.throwIfAborted();
  }

  /** Ends what is due, in order, and lets the runner act in between. */
  async advance(delayMs: number): Promise<void> {
    const untilMs = this.#nowMs + delayMs;
    for (;;) {
      const next = this.#running.findIndex(({ endMs }) => endMs <= untilMs);
      if (next === -1) break;
      const [due] = this.#running.splice(next, 1);
      this.#nowMs = Math.max(this.#nowMs, due?.endMs ?? 0);
      due?.end();
      for (let turn = 0; turn < 10; turn++) await Promise.resolve();
    }
    this.#nowMs = untilMs;
  }

  failAll(error: Error): void {
    for (const { fail } of this.#running.splice(0)) fail(error);
  }

  async prepare(request: PlannedRequest): ReturnType<LoadTarget['prepare']> {
    this.log.push(`prepare ${request.request}`);
    return { key: request.request, planned: request };
  }

  measure({ key }: { readonly key: number }, arrivedMs: number | null = null): Promise<TtftSample> {
    this.log.push(`at ${this.#nowMs} start ${key}, arrived ${arrivedMs}`);
    return new Promise((resolve, reject) => {
      this.#running.push({
        endMs: this.#nowMs + this.#serviceMs,
        end: () => resolve(sampleWith({ request: key })),
        fail: reject,
      });
    });
  }

  refuse({ key }: { readonly key: number }, arrivedMs: number, reason: string): TtftSample {
    this.log.push(`at ${this.#nowMs} refuse ${key}, arrived ${arrivedMs}`);
    return sampleWith({ request: key, outcome: 'rejected', error: reason });
  }

  runner(concurrency: number, maxQueued: number | null): LoadRunner {
    return new LoadRunner(this, { concurrency, maxQueued }, this, ({ request }, { outcome }) =>
      this.samples.push(`${request} ${outcome}`),
    );
  }
}

describe('LoadRunner', () => {
  it('makes all prompts first, then lets requests come when they arrive, whether one is under way or not', async () => {
    const world = new World(100);
    const run = world.runner(8, null).run([planned(0, 0), planned(1, 30), planned(2, 500)]);
    await world.advance(0);
    for (let turn = 0; turn < 50; turn++) await Promise.resolve();
    await world.advance(1000);
    await run;
    expect(world.log).toEqual([
      'prepare 0',
      'prepare 1',
      'prepare 2',
      'at 1000 start 0, arrived 1000',
      'at 1030 start 1, arrived 1030',
      'at 1500 start 2, arrived 1500',
    ]);
    expect(world.samples).toEqual(['0 completed', '1 completed', '2 completed']);
  });

  it('lets those beyond the concurrency wait in line on their own clock, and refuses those beyond the queue', async () => {
    const world = new World(100);
    const arrivals = [0, 10, 20, 30, 40].map((arrivalMs, request) => planned(request, arrivalMs));
    const run = world.runner(1, 2).run(arrivals);
    for (let turn = 0; turn < 100; turn++) await Promise.resolve();
    await world.advance(1000);
    await run;
    expect(world.log.slice(5)).toEqual([
      'at 1000 start 0, arrived 1000',
      'at 1030 refuse 3, arrived 1030',
      'at 1040 refuse 4, arrived 1040',
      'at 1100 start 1, arrived 1010',
      'at 1200 start 2, arrived 1020',
    ]);
    expect(world.samples).toEqual(['3 rejected', '4 rejected', '0 completed', '1 completed', '2 completed']);
  });

  it('ends with the first request that cannot be run, and starts none that waits', async () => {
    const world = new World(1e9);
    const run = world.runner(1, null).run([planned(0, 0), planned(1, 0), planned(2, 5)]);
    for (let turn = 0; turn < 100; turn++) await Promise.resolve();
    world.failAll(new Error('the servers are gone'));
    await expect(run).rejects.toThrow('the servers are gone');
    expect(world.log.filter((line) => line.includes('start'))).toEqual(['at 1000 start 0, arrived 1000']);
    expect(world.samples).toEqual([]);
  });
});
