import { describe, expect, it } from 'vitest';
import { TransportError } from '../../../src/errors.js';
import { Executor } from '../../../src/executor/executor.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';
import { FakeCache } from './fake-cache.js';
import { FakeEngine } from './fake-engine.js';
import { FakeTransceiver } from './fake-transceiver.js';
import { aggregateRequest, contextRequest, generationRequest, SCHEDULES } from './harness.js';

const TPB = 4;
const CHUNK = 8;
const BUDGET = 24;
const BUFFER_TOKENS = 40;

/** Each look at it takes so long that most portions end after one unit of work: others have their turn wherever they can. */
class HastyClock extends FakeClock {
  readonly #random: () => number;
  #spentMs = 0;

  constructor(random: () => number) {
    super();
    this.#random = random;
  }

  override now(): number {
    this.#spentMs += this.#random() < 0.7 ? 1.5 : 0;
    return super.now() + this.#spentMs;
  }
}

/** Executor over fakes whose requests are submitted, cancelled and settled between any two portions. */
class Bustle {
  readonly log: string[] = [];
  readonly random: () => number;
  readonly clock: HastyClock;
  readonly cache: FakeCache;
  readonly transceiver: FakeTransceiver;
  readonly engine: FakeEngine;
  readonly executor: Executor;
  readonly requests = new Map<number, LlmRequest>();
  readonly ended: number[] = [];
  readonly #hits = new Map<number, number>();

  constructor(seed: number, schedule: (typeof SCHEDULES)[number]) {
    this.random = seededRandom(seed);
    this.clock = new HastyClock(this.random);
    this.cache = new FakeCache(this.log, { tokensPerBlock: TPB, slotCount: 60 });
    this.transceiver = new FakeTransceiver(this.log);
    this.engine = new FakeEngine(this.log);
    this.executor = new Executor({
      clock: this.clock,
      cache: this.cache,
      transceiver: this.transceiver,
      engine: this.engine,
      schedule,
      limits: { chunkTokens: CHUNK, tokenBudget: BUDGET, maxTokensInBuffer: BUFFER_TOKENS },
      events: {
        onFinished: ({ id }) => {
          this.log.push(`finished ${id}`);
          this.ended.push(id);
        },
      },
    });
  }

  pick(bound: number): number {
    return Math.floor(this.random() * bound);
  }

  submit(id: number): void {
    const length = 1 + this.pick(48);
    const kind = this.pick(3);
    if (kind === 0) this.#hit(id, Math.min(this.pick(4) * TPB + this.pick(2), length - 1));
    const request =
      kind === 0
        ? contextRequest(id, length)
        : kind === 1
          ? generationRequest(id, length, 1 + this.pick(4))
          : aggregateRequest(id, length, 1 + this.pick(4));
    this.requests.set(id, request);
    this.executor.submit(request);
  }

  hitOf(id: number): number {
    return this.#hits.get(id) ?? 0;
  }

  /** Ends transfers that can end, and sometimes fails one. */
  settleSome(share: number): void {
    for (const request of this.requests.values()) {
      const sends = request.state === 'DISAGG_CONTEXT_TRANS_IN_PROGRESS';
      const receives = request.state === 'DISAGG_GENERATION_TRANS_IN_PROGRESS';
      if ((!sends && !receives) || this.#settled.has(request.id) || this.random() > share) continue;
      this.#settled.add(request.id);
      if (this.random() < 0.1)
        this.transceiver.settle(request, 'failed', { error: new TransportError('broke', { drained: true }) });
      else this.transceiver.settle(request, 'completed', { firstTokens: [100 * request.id] });
    }
  }

  readonly #settled = new Set<number>();

  #hit(id: number, tokens: number): void {
    this.#hits.set(id, tokens);
    this.cache.hits.set(id, tokens);
  }

  get buffered(): number[] {
    const receiving = [...this.requests.values()].filter(
      ({ state }) => state === 'DISAGG_GENERATION_TRANS_IN_PROGRESS',
    );
    return receiving.map(({ promptTokens }) => Math.ceil(promptTokens.length / TPB));
  }
}

/** Work of one forward in the log: `id[from,to)` and `id@position`. */
function worksOf(line: string): { id: number; begin: number; end: number; decodes: boolean }[] {
  return line
    .split(' ')
    .slice(1)
    .map((word) => {
      const chunk = /^(\d+)\[(\d+),(\d+)\)$/.exec(word);
      if (chunk !== null)
        return { id: Number(chunk[1]), begin: Number(chunk[2]), end: Number(chunk[3]), decodes: false };
      const [id, at] = word.split('@').map(Number) as [number, number];
      return { id, begin: at, end: at + 1, decodes: true };
    });
}

/** What holds of every forward and of what surrounds it. */
function checkLog(bustle: Bustle): void {
  const next = new Map<number, number>();
  const sent = new Map<number, number>();
  const prefixed = new Set<number>();
  for (const line of bustle.log) {
    const [verb = '', idWord] = line.split(' ');
    const id = Number(idWord);
    if (verb === 'prefix') {
      expect(next.has(id), `${line}: before its first forward, once`).toBe(false);
      expect(prefixed.has(id), line).toBe(false);
      prefixed.add(id);
    } else if (verb === 'forward') {
      const works = worksOf(line);
      expect(
        works.reduce((sum, { begin, end }) => sum + end - begin, 0),
        line,
      ).toBeLessThanOrEqual(BUDGET);
      expect(new Set(works.map((work) => work.id)).size, line).toBe(works.length);
      for (const { id: request, begin, end, decodes } of works) {
        if (decodes) continue;
        expect(end - begin, line).toBeLessThanOrEqual(CHUNK);
        expect(begin, `${line}: goes on where it was`).toBe(next.get(request) ?? bustle.hitOf(request));
        next.set(request, end);
      }
    } else if (verb === 'send') {
      const [, begin, end] = /\[(\d+),(\d+)\)/.exec(line) as unknown as [string, string, string];
      expect(Number(end), `${line}: what was enqueued last`).toBe(next.get(id));
      expect(sent.get(id) ?? -1, `${line}: in order, each once`).toBeLessThan(Number(end));
      expect(Number(begin), line).toBeLessThan(Number(end));
      sent.set(id, Number(end));
    }
  }
}

describe.each(SCHEDULES)('portions that end anywhere, %s', (schedule) => {
  it('change neither the order of a step nor how a request ends, whatever comes in between', async () => {
    const met = { prefix: 0, send: 0, receive: 0, cancel: 0, forward: 0 };
    for (let seed = 1; seed <= 15; seed++) {
      const bustle = new Bustle(seed, schedule);
      let nextId = 1;
      for (let turn = 0; turn < 400; turn++) {
        if (nextId <= 30 && bustle.random() < 0.3) bustle.submit(nextId++);
        if (bustle.random() < 0.04) bustle.executor.cancel(1 + bustle.pick(nextId));
        if (bustle.random() < 0.3) bustle.settleSome(0.4);
        bustle.clock.advance(1);
        await bustle.clock.turn();
        const { buffered } = bustle;
        const blocks = buffered.reduce((sum, count) => sum + count, 0);
        expect(blocks <= BUFFER_TOKENS / TPB || buffered.length === 1, `seed ${seed}: ${buffered}`).toBe(true);
      }
      for (let turn = 0; turn < 2000 && bustle.ended.length < nextId - 1; turn++) {
        bustle.settleSome(1);
        bustle.clock.advance(20);
        await bustle.clock.turn();
      }
      const all = Array.from({ length: nextId - 1 }, (_, index) => index + 1);
      const left = bustle.executor.dump();
      expect(
        [...bustle.ended].sort((a, b) => a - b),
        `seed ${seed}: ${JSON.stringify(left)}`,
      ).toEqual(all);
      expect(bustle.cache.used, `seed ${seed}`).toBe(0);
      checkLog(bustle);
      for (const line of bustle.log) {
        const verb = line.split(' ')[0] as keyof typeof met;
        if (Object.hasOwn(met, verb)) met[verb] += 1;
      }
    }
    for (const [what, count] of Object.entries(met)) expect(count, what).toBeGreaterThan(20);
  });
});
