import { describe, expect, it } from 'vitest';
import type { ReadyEvent } from '../../src/agent/transfer-agent.js';
import {
  type CacheManagerOptions,
  chainBlockHashes,
  GrowingCacheManager,
  type PageMove,
  type PageMover,
  type PagesReady,
  ReservingCacheManager,
} from '../../src/cache/index.js';
import { RequestTooLargeError, TransportError } from '../../src/errors.js';
import { createRequest } from '../../src/executor/create-request.js';
import { Executor } from '../../src/executor/executor.js';
import type { StepSchedule } from '../../src/executor/executor-options.js';
import type { LlmRequest } from '../../src/executor/request.js';
import { FakeClock } from '../sim-lite/fake-clock.js';
import { FakeEngine } from './executor/fake-engine.js';
import { FakeTransceiver } from './executor/fake-transceiver.js';
import { aggregateRequest, contextRequest, generationRequest, prompt, SCHEDULES } from './executor/harness.js';

const TPB = 4;
const GROUP = {
  kind: 'attention',
  windowSize: null,
  tokensPerBlock: TPB,
  layers: [0],
  slotCount: 6,
  hostSlotCount: 8,
} as const;

/** Batches settle when the test says so. */
class ScriptedMover implements PageMover {
  readonly batches: { moves: readonly PageMove[]; resolve: () => void; reject: (error: Error) => void }[] = [];
  event: ReadyEvent | null = { handle: 5, signal: () => {}, fail: () => {} };

  move(moves: readonly PageMove[]): PagesReady {
    const done = new Promise<void>((resolve, reject) => {
      this.batches.push({ moves, resolve, reject });
    });
    return { event: this.event, done };
  }
}

/** Remembers behind what the prefixes left. */
class PrefixTransceiver extends FakeTransceiver {
  readonly prefixAfter: (ReadyEvent | null)[] = [];

  override sendEarlyPrefix(request: LlmRequest, options?: { readonly after: ReadyEvent | null }) {
    this.prefixAfter.push(options?.after ?? null);
    return super.sendEarlyPrefix(request);
  }
}

function setup(
  schedule: StepSchedule,
  options: Partial<CacheManagerOptions> = {},
  Manager = GrowingCacheManager,
  chunkTokens = 8,
) {
  const log: string[] = [];
  const clock = new FakeClock();
  const mover = new ScriptedMover();
  const cache = new Manager({
    tokensPerBlock: TPB,
    layerGroups: [GROUP],
    mover,
    ...options,
  });
  const transceiver = new PrefixTransceiver(log);
  const engine = new FakeEngine(log);
  const limits = { chunkTokens, tokenBudget: 1000, maxTokensInBuffer: null };
  const events = {
    onFinished: (request: LlmRequest, outcome: string) => log.push(`finished ${request.id} ${outcome}`),
  };
  const executor = new Executor({ clock, cache, transceiver, engine, limits, events, schedule });
  /** Content of prompt `first`, `first + 1`, ... that nobody owns. */
  const keep = (length: number, first: number): void => {
    const tokens = prompt(length, first);
    cache.addRequest(900, { promptLen: length, blockHashes: chainBlockHashes(tokens, TPB), tokens });
    expect(cache.ensureCapacity(900, length)).toBe(true);
    cache.markComputed(900, length);
    cache.freeRequest(900);
  };
  return { log, clock, mover, cache, transceiver, engine, executor, keep };
}

describe.each(SCHEDULES)('an executor over pages that are moved, %s', (schedule) => {
  it('asks no peer to write before the old content is saved, and does so at once when it is', async () => {
    const { executor, clock, mover, log, keep } = setup(schedule);
    keep(24, 5000);
    executor.submit(generationRequest(1, 16));
    await clock.turn(20);
    expect(mover.batches.map(({ moves }) => moves.map((move) => move.kind))).toEqual([Array(4).fill('offload')]);
    expect(log).toEqual([]);
    mover.batches[0]?.resolve();
    await clock.turn(20);
    expect(log).toEqual(['receive 1 0']);
  });

  it('a receive whose kept prefix cannot be brought back fails, alone', async () => {
    const { executor, clock, mover, log, cache, keep } = setup(schedule);
    keep(16, 0);
    keep(24, 5000);
    mover.batches[0]?.resolve();
    await clock.turn(5);
    const request = generationRequest(1, 17);
    executor.submit(request);
    await clock.turn(20);
    expect(request.prepopulatedLen).toBe(16);
    mover.batches[1]?.reject(new Error('no memory'));
    await clock.turn(20);
    const gone = [`cancel 1 ${request.error?.message}`, 'finished 1 failed'];
    expect(log).toEqual(gone);
    expect(request.error).toBeInstanceOf(TransportError);
    executor.submit(generationRequest(2, 8));
    await clock.turn(20);
    mover.batches.slice(2).forEach(({ resolve }) => {
      resolve();
    });
    await clock.turn(20);
    // The host still has what it could not hand over.
    expect(log).toEqual([...gone, 'receive 2 4']);
    expect(cache.isPinned(1)).toBe(false);
  });

  it('the reused prefix leaves at once behind the moves that bring it, the first chunk is computed when they are over', async () => {
    const { executor, clock, mover, log, transceiver, engine, keep } = setup(schedule);
    keep(16, 0);
    keep(24, 5000);
    mover.batches[0]?.resolve();
    await clock.turn(5);
    engine.manual = true;
    executor.submit(contextRequest(1, 20));
    await clock.turn(20);
    expect(transceiver.prefixAfter).toEqual([mover.event]);
    expect(log).toEqual(['prefix 1 16']);
    mover.batches[1]?.resolve();
    await clock.turn(20);
    expect(engine.batches[0]?.context[0]?.pagesReady).toBeNull();
    expect(log).toEqual(['prefix 1 16', 'forward 1[16,20)', 'send 1 [16,20)']);
    expect(transceiver.prefixAfter).toHaveLength(1);
  });

  it('requests that wait for no move go on beside one whose moves never end, and it can be cancelled', async () => {
    const { executor, clock, mover, log, cache, keep } = setup(schedule, {
      layerGroups: [{ ...GROUP, slotCount: 16 }],
    });
    keep(16, 0);
    cache.addRequest(901, { promptLen: 8, blockHashes: ['x', 'y'] });
    expect(cache.ensureCapacity(901, 8)).toBe(true);
    keep(56, 5000);
    mover.batches[0]?.resolve();
    await clock.turn(5);
    executor.submit(contextRequest(1, 20));
    await clock.turn(20);
    expect(mover.batches).toHaveLength(2);
    expect(mover.batches[1]?.moves.map(({ kind }) => kind)).toContain('onboard');
    expect(log.splice(0)).toEqual(['prefix 1 16']);
    // Two slots that nothing has to be saved from.
    cache.freeRequest(901);
    executor.submit(createRequest({ id: 2, promptTokens: prompt(8, 9000), maxTokens: 1 }));
    await clock.turn(40);
    expect(log.splice(0).at(-1)).toBe('finished 2 completed');
    expect(executor.cancel(1)).toBe(true);
    await clock.turn(20);
    expect(log.filter((line) => !line.startsWith('cancel'))).toEqual(['finished 1 cancelled']);
    expect(executor.stats().live).toBe(0);
  });

  it('new blocks whose old content is still being saved do not hold up a prefix that is there', async () => {
    const { executor, clock, mover, log, transceiver, keep } = setup(schedule);
    keep(8, 5000);
    keep(16, 0);
    executor.submit(contextRequest(1, 24));
    await clock.turn(20);
    expect(mover.batches.map(({ moves }) => moves.map(({ kind }) => kind))).toEqual([['offload', 'offload']]);
    expect(log).toEqual(['prefix 1 16']);
    expect(transceiver.prefixAfter).toEqual([null]);
    mover.batches[0]?.resolve();
    await clock.turn(20);
    expect(log.slice(0, 4)).toEqual(['prefix 1 16', 'forward 1[16,24)', 'done', 'send 1 [16,24)']);
  });

  it('without an event to wait for, the prefix leaves when it is there', async () => {
    const { executor, clock, mover, log, engine, keep } = setup(schedule);
    mover.event = null;
    keep(16, 0);
    keep(24, 5000);
    mover.batches[0]?.resolve();
    await clock.turn(5);
    engine.manual = true;
    executor.submit(contextRequest(1, 20));
    await clock.turn(20);
    expect(log).toEqual([]);
    mover.batches[1]?.resolve();
    await clock.turn(20);
    expect(log).toEqual(['prefix 1 16', 'forward 1[16,20)', 'send 1 [16,20)']);
  });

  it('a later chunk that waits for its blocks does not send the prefix again', async () => {
    const { executor, clock, mover, log, engine, keep } = setup(schedule, {}, GrowingCacheManager, 4);
    mover.event = null;
    keep(8, 0);
    keep(16, 5000);
    engine.manual = true;
    executor.submit(contextRequest(1, 20));
    for (let turn = 0; turn < 12; turn++) {
      await clock.turn(20);
      if (engine.running.length > 0) engine.finish();
      mover.event = { handle: 9, signal: () => {}, fail: () => {} };
      for (const { resolve } of mover.batches) resolve();
    }
    expect(log.filter((line) => line.startsWith('prefix'))).toEqual(['prefix 1 8']);
    expect(log.filter((line) => line.startsWith('send'))).toEqual([
      'send 1 [8,12)',
      'send 1 [12,16)',
      'send 1 [16,20)',
    ]);
    expect(mover.batches.length).toBeGreaterThan(1);
  });

  it('a prefix that could not be brought back fails its request before the next forward', async () => {
    const { executor, clock, mover, log, keep } = setup(schedule, {}, GrowingCacheManager, 1);
    keep(16, 0);
    keep(24, 5000);
    mover.batches[0]?.resolve();
    await clock.turn(5);
    const request = contextRequest(1, 20);
    executor.submit(request);
    await clock.turn(1);
    mover.batches[1]?.reject(new Error('link down'));
    await clock.turn(20);
    expect(log.filter((line) => line.startsWith('forward')).length).toBeLessThan(4);
    expect(log.at(-1)).toBe('finished 1 failed');
    expect(request.error?.message).toMatch(/link down/);
  });

  it('passes the tokens on, so that parts of blocks are reused', async () => {
    const { executor, clock, keep, engine, mover } = setup(schedule, { partialReuse: true });
    keep(16, 0);
    engine.manual = true;
    const request = contextRequest(1, 16);
    executor.submit(request);
    await clock.turn(20);
    expect(request.prepopulatedLen).toBe(15);
    expect(mover.batches[0]?.moves).toMatchObject([{ kind: 'copy', tokenCount: 3 }]);
    mover.batches[0]?.resolve();
    await clock.turn(20);
    expect(engine.batches[0]?.context).toMatchObject([{ chunkStart: 15, chunkEnd: 16 }]);
  });
});

describe.each(SCHEDULES)('admission, %s', (schedule) => {
  const group = (slotCount: number, windowSize: number | null) =>
    ({ kind: 'attention', windowSize, tokensPerBlock: TPB, layers: [0], slotCount }) as const;

  it('counts every block of a prompt that is reserved, windowed or not', async () => {
    const layerGroups = [group(16, null), group(9, 4)];
    const { executor, clock, engine, log, cache } = setup(schedule, { layerGroups }, ReservingCacheManager);
    engine.manual = true;
    executor.submit(aggregateRequest(1, 16, 1));
    executor.submit(aggregateRequest(2, 20, 1));
    executor.submit(aggregateRequest(3, 4, 1));
    await clock.turn(20);
    // 4 + 5 blocks of the windowed group fit; the third request waits and holds nothing.
    expect(log).toEqual(['forward 1[0,8) 2[0,8)', ...(schedule === 'overlap' ? ['forward 1[8,16) 2[8,16)'] : [])]);
    expect(cache.stats().map(({ free }) => free)).toEqual([7, 0]);
    expect(() => cache.getBlockIdsRange(3, 0, 0, 0)).toThrow(/request 3 is not in the cache/);
    for (let forward = 0; forward < 6 && engine.running.length > 0; forward++) {
      engine.finish();
      await clock.turn(20);
    }
    expect(log.filter((line) => line.startsWith('finished')).sort()).toEqual([
      'finished 1 completed',
      'finished 2 completed',
      'finished 3 completed',
    ]);
  });

  it('a receiver needs its final window only, also where prompts are reserved', async () => {
    const layerGroups = [group(20, null), group(4, 8)];
    const receiver = setup(schedule, { layerGroups }, ReservingCacheManager);
    receiver.executor.submit(generationRequest(1, 64));
    await receiver.clock.turn(20);
    expect(receiver.log).toEqual(['receive 1 0']);
    // A context server would have to reserve all 16 blocks, and says so at once.
    const sender = setup(schedule, { layerGroups }, ReservingCacheManager);
    const request = contextRequest(2, 64);
    expect(() => sender.executor.submit(request)).toThrow(RequestTooLargeError);
    expect(() => sender.executor.submit(request)).toThrow(/needs 16 blocks .* layer group 1 has 4 in all/);
    expect(sender.executor.stats().live).toBe(0);
  });

  it('counts the speculative blocks', async () => {
    const { executor, clock, engine, log } = setup(schedule, { layerGroups: [group(9, null)], speculativeTokens: 4 });
    engine.manual = true;
    executor.submit(aggregateRequest(1, 16, 1));
    executor.submit(aggregateRequest(2, 16, 1));
    await clock.turn(20);
    // 5 + 5 blocks do not fit: the second one is not let in.
    expect(log).toEqual(['forward 1[0,8)', ...(schedule === 'overlap' ? ['forward 1[8,16)'] : [])]);
  });
});
