import { describe, expect, it } from 'vitest';
import type { ContentJob, PageContent } from '../../../src/agent/page-content.js';
import type { ReadyEvent } from '../../../src/agent/transfer-agent.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import { PaceCurve } from '../../../src/executor/engines/pace-curve.js';
import { PacedEngine, type PacedEngineOptions } from '../../../src/executor/engines/paced-engine.js';
import type { ScheduledWork } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import type { PageTable } from '../../../src/mapping/page-table.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { aggregateRequest, generationRequest, prompt } from './harness.js';

const TPB = 4;
const GROUPS: readonly LayerGroup[] = [
  { kind: 'attention', windowSize: null, tokensPerBlock: TPB, layers: [0], slotCount: 64 },
  { kind: 'attention', windowSize: 8, tokensPerBlock: TPB, layers: [1], slotCount: 64 },
];
const TABLE: PageTable = { pools: [], layerGroups: [], aux: null };

class FakeContent implements PageContent {
  readonly jobs: ContentJob[] = [];
  readonly fillGate: (() => Promise<void>)[] = [];
  failure: Error | null = null;

  chainTokenSeeds(tokens: Uint32Array): BigUint64Array {
    let seed = 7n;
    return BigUint64Array.from(tokens, (token) => {
      seed = (seed * 31n + BigInt(token)) & ((1n << 64n) - 1n);
      return seed;
    });
  }

  async fill(job: ContentJob): Promise<{ readonly bytesWritten: number }> {
    this.jobs.push(job);
    await this.fillGate.shift()?.();
    if (this.failure !== null) throw this.failure;
    return { bytesWritten: job.tokenEnd - job.tokenBegin };
  }

  verify(): never {
    throw new Error('not used');
  }
}

interface Event extends ReadyEvent {
  state: string;
}

function setup(groups: readonly LayerGroup[] = GROUPS, more: Partial<PacedEngineOptions> = {}) {
  const clock = new FakeClock();
  const content = new FakeContent();
  const cache = new GrowingCacheManager({ tokensPerBlock: TPB, layerGroups: groups });
  const events: Event[] = [];
  const agent = {
    createEvent(): ReadyEvent {
      const event: Event = {
        handle: events.length,
        state: 'pending',
        signal: () => {
          event.state = 'signalled';
        },
        fail: (message) => {
          event.state = `failed: ${message}`;
        },
      };
      events.push(event);
      return event;
    },
  };
  // 2 FLOP a token and no attention to speak of: 1 ms per prompt token.
  const curve = new PaceCurve(
    { activeParameters: 1e9, attentionHeads: 1, headDim: 1, layers: [], kvBytesPerTokenAndLayer: 1 },
    { effectiveFlops: 2e12, effectiveBytesPerSecond: 1e12 },
  );
  const engine = new PacedEngine({
    clock,
    agent,
    content,
    cache,
    pageTable: TABLE,
    curve,
    firstHead: 2,
    vocabularySize: 1000,
    ...more,
  });
  return { clock, content, cache, events, engine };
}

function admit(cache: GrowingCacheManager, request: LlmRequest, endToken: number): void {
  cache.addRequest(request.id, { promptLen: request.promptTokens.length, blockHashes: hashes(request) });
  expect(cache.ensureCapacity(request.id, endToken)).toBe(true);
}

function hashes(request: LlmRequest): string[] {
  return Array.from({ length: Math.floor(request.promptTokens.length / TPB) }, (_, i) => `${request.id}-${i}`);
}

function work(request: LlmRequest, chunkStart: number, chunkEnd: number): ScheduledWork {
  return { request, chunkStart, chunkEnd };
}

describe('PacedEngine', () => {
  it('writes the chunk in every group, takes its modelled time, then signals and samples', async () => {
    const { clock, content, cache, events, engine } = setup();
    const request = aggregateRequest(1, 10);
    admit(cache, request, 10);
    const { event, tokens } = await engine.forward({ context: [work(request, 3, 10)], generation: [] });
    let settled: ReadonlyMap<LlmRequest, number> | null = null;
    void tokens.then((map) => {
      settled = map;
    });
    expect(event).toBe(events[0]);
    await clock.run(6.9);
    expect(content.jobs.map((job) => [job.group, job.run.begin, job.run.slots.length])).toEqual([
      [0, 0, 3],
      [1, 0, 3],
    ]);
    expect(content.jobs.map((job) => [job.tokenBegin, job.tokenEnd, job.firstHead, job.table])).toEqual([
      [3, 10, 2, TABLE],
      [3, 10, 2, TABLE],
    ]);
    expect([...(content.jobs[0]?.run.slots ?? [])]).toEqual([...cache.getBlockIdsRange(1, 0, 0, 3).slots]);
    expect(content.jobs[0]?.tokenSeeds).toEqual(content.chainTokenSeeds(request.promptTokens));
    expect(events[0]?.state).toBe('pending');
    expect(settled).toBeNull();
    await clock.run(0.2);
    expect(events[0]?.state).toBe('signalled');
    expect([...(settled as unknown as Map<LlmRequest, number>).keys()]).toEqual([request]);
    expect(engine.stats()).toEqual({ forwards: 1, bytesWritten: 14, modelledMs: 7, overruns: 0, overrunMs: 0 });
  });

  it('a middle chunk samples nothing', async () => {
    const { clock, cache, engine } = setup();
    const request = aggregateRequest(1, 10);
    admit(cache, request, 5);
    const { tokens } = await engine.forward({ context: [work(request, 0, 5)], generation: [] });
    await clock.run(5);
    expect((await tokens).size).toBe(0);
  });

  it('writes only resident blocks of a windowed group', async () => {
    const { clock, content, cache, engine } = setup();
    const request = aggregateRequest(1, 40);
    admit(cache, request, 40);
    // As if the first blocks of the window's group had gone: the run starts where the manager says.
    const cut = cache.getBlockIdsRange.bind(cache);
    cache.getBlockIdsRange = (id, group, begin, end) => cut(id, group, group === 1 ? Math.max(begin, 7) : begin, end);
    const { tokens } = await engine.forward({ context: [work(request, 20, 40)], generation: [] });
    await clock.run(20);
    await tokens;
    expect(content.jobs.map((job) => [job.group, job.run.begin, job.tokenBegin, job.tokenEnd])).toEqual([
      [0, 5, 20, 40],
      [1, 7, 28, 40],
    ]);
  });

  it('runs forwards one after another', async () => {
    const { clock, cache, events, engine } = setup();
    const requests = [aggregateRequest(1, 10), aggregateRequest(2, 6)];
    for (const request of requests) admit(cache, request, request.promptTokens.length);
    const first = await engine.forward({ context: [work(requests[0] as LlmRequest, 0, 10)], generation: [] });
    const second = await engine.forward({ context: [work(requests[1] as LlmRequest, 0, 6)], generation: [] });
    await clock.run(10);
    await first.tokens;
    expect(events.map((event) => event.state)).toEqual(['signalled', 'pending']);
    await clock.run(5.5);
    expect(events[1]?.state).toBe('pending');
    await clock.run(0.5);
    expect(events[1]?.state).toBe('signalled');
    await second.tokens;
  });

  it('says by how much writing overran the modelled time', async () => {
    const { clock, content, cache, engine } = setup();
    const request = aggregateRequest(1, 4);
    admit(cache, request, 4);
    content.fillGate.push(() => new Promise((resolve) => void clock.setTimer(9, resolve)));
    const { tokens } = await engine.forward({ context: [work(request, 0, 4)], generation: [] });
    await clock.run(9);
    await tokens;
    expect(engine.stats()).toMatchObject({ modelledMs: 4, overruns: 1, overrunMs: 5 });
  });

  it('a failed write fails the event and the tokens, after the other writes ended, and the next forward runs', async () => {
    const { clock, content, cache, events, engine } = setup();
    const request = aggregateRequest(1, 4);
    admit(cache, request, 4);
    content.failure = new Error('no such slot');
    content.fillGate.push(
      () => Promise.resolve(),
      () => new Promise((resolve) => void clock.setTimer(50, resolve)),
    );
    const { tokens } = await engine.forward({ context: [work(request, 0, 4)], generation: [] });
    const outcome = tokens.catch((error: unknown) => error);
    await clock.run(49);
    expect(events[0]?.state).toBe('pending');
    await clock.run(1);
    expect(await outcome).toBe(content.failure);
    expect(events[0]?.state).toBe('failed: no such slot');
    content.failure = null;
    const again = await engine.forward({ context: [work(request, 0, 4)], generation: [] });
    await clock.run(4);
    expect((await again.tokens).size).toBe(1);
  });

  it('rejects the forward, with nothing enqueued, when blocks are missing', async () => {
    const { content, cache, events, engine } = setup();
    const request = aggregateRequest(1, 10);
    admit(cache, request, 4);
    await expect(engine.forward({ context: [work(request, 0, 10)], generation: [] })).rejects.toThrow(RangeError);
    expect(content.jobs.length + events.length).toBe(0);
  });

  it('decodes what an aggregate server would say, and writes nothing for it', async () => {
    const { clock, content, cache, engine } = setup();
    const aggregate = aggregateRequest(1, 4, 3);
    admit(cache, aggregate, 4);
    const tokens = [];
    const prefill = await engine.forward({ context: [work(aggregate, 0, 4)], generation: [] });
    await clock.run(4);
    tokens.push((await prefill.tokens).get(aggregate) as number);
    const other = generationRequest(2, 4, 3);
    const written = content.jobs.length;
    for (const request of [aggregate, other]) {
      request.outputTokens.push(tokens[0] as number);
      const step = await engine.forward({ context: [], generation: [work(request, 4, 4)] });
      await clock.run(2); // 2 GB of weights at 1 TB/s
      tokens.push((await step.tokens).get(request) as number);
    }
    expect(tokens[1]).toBe(tokens[2]);
    expect(tokens[0]).not.toBe(tokens[1]);
    expect(tokens.every((token) => Number.isInteger(token) && token >= 0 && token < 1000)).toBe(true);
    expect(content.jobs.length).toBe(written);
  });

  it('says another token for another prompt', async () => {
    const { clock, cache, engine } = setup();
    const requests = [aggregateRequest(1, 4), { ...aggregateRequest(2, 4), promptTokens: prompt(4, 50) }];
    for (const request of requests) admit(cache, request, 4);
    const { tokens } = await engine.forward({
      context: requests.map((request) => work(request, 0, 4)),
      generation: [],
    });
    await clock.run(8);
    expect(new Set((await tokens).values()).size).toBe(2);
  });

  it('writes the whole state after every chunk, and names its units', async () => {
    const state: LayerGroup = { kind: 'state', windowSize: null, tokensPerBlock: TPB, layers: [2], slotCount: 4 };
    const firstUnits = { conv_state: [4, 1, 1], ssm_state: [4] };
    const { clock, content, cache, engine } = setup([...GROUPS, state], { firstUnits });
    const request = aggregateRequest(1, 10);
    admit(cache, request, 10);
    for (const [begin, end] of [
      [0, 5],
      [5, 10],
    ] as const) {
      const { tokens } = await engine.forward({ context: [work(request, begin, end)], generation: [] });
      await clock.run(end - begin);
      await tokens;
    }
    const states = content.jobs.filter((job) => job.group === 2);
    expect(states.map((job) => [job.run.begin, job.run.slots.length, job.tokenEnd])).toEqual([
      [0, 1, 5],
      [0, 1, 10],
    ]);
    expect(states.every((job) => job.firstUnits === firstUnits)).toBe(true);
  });

  it('writes only the blocks that a context parallel rank owns', async () => {
    const { clock, content, cache, engine } = setup(GROUPS.slice(0, 1), { owner: { cpSize: 2, cpRank: 1 } });
    const request = aggregateRequest(1, 20);
    // Its manager counts the blocks 1 and 3 of five as 0 and 1.
    cache.addRequest(request.id, { promptLen: 8, blockHashes: ['a', 'b'] });
    expect(cache.ensureCapacity(request.id, 8)).toBe(true);
    for (const [begin, end] of [
      [0, 3],
      [3, 18],
      [18, 20],
    ] as const) {
      const { tokens } = await engine.forward({ context: [work(request, begin, end)], generation: [] });
      await clock.run(end - begin);
      await tokens;
    }
    // The first and the last chunk lie in blocks of the other rank.
    expect(content.jobs.map((job) => [job.run.begin, job.run.stride, job.run.slots.length])).toEqual([[1, 2, 2]]);
    expect(content.jobs.map((job) => [job.tokenBegin, job.tokenEnd])).toEqual([[4, 18]]);
  });
});
