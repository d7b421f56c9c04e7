import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type CacheManagerOptions,
  chainBlockHashes,
  GrowingCacheManager,
  type PagedCacheManager,
  ReservingCacheManager,
} from '../../src/cache/index.js';
import { RequestTooLargeError } from '../../src/errors.js';
import { createRequest } from '../../src/executor/create-request.js';
import { Executor } from '../../src/executor/executor.js';
import type { LlmRequest } from '../../src/executor/request.js';
import { type RequestRole, roleOf } from '../../src/executor/request-states.js';
import { staleBlockEnd } from '../../src/geometry/stale-block-end.js';
import type { SendReceipt } from '../../src/session/cache-transceiver.js';
import { FakeClock } from '../sim-lite/fake-clock.js';
import { FakeEngine } from '../unit/executor/fake-engine.js';
import { FakeTransceiver } from '../unit/executor/fake-transceiver.js';
import { disaggId, PIPELINED, params, WHOLE } from '../unit/executor/harness.js';

const MAX_PROMPT = 40;

const MANAGERS = { growing: GrowingCacheManager, reserving: ReservingCacheManager } as const;

const group = fc.record({
  // With a window of 1 nothing of a prefix is needed, so that an empty pool has it.
  windowSize: fc.option(fc.integer({ min: 2, max: 24 }), { freq: 5 }),
  sinkTokens: fc.oneof(fc.constant(0), fc.nat({ max: 9 })),
  slotCount: fc.integer({ min: 1, max: 24 }),
  hostSlotCount: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 8 })),
});
const request = fc.record({
  role: fc.constantFrom<RequestRole>('context', 'generation', 'aggregate'),
  promptLen: fc.integer({ min: 1, max: MAX_PROMPT }),
  maxTokens: fc.integer({ min: 1, max: 30 }),
  /** Tokens that are those of every other prompt, so that prefixes are found. */
  shared: fc.nat({ max: MAX_PROMPT }),
  pipelined: fc.boolean(),
  /** How long its transfer takes, and its pages are held after it. */
  transferMs: fc.nat({ max: 20 }),
  drainMs: fc.nat({ max: 20 }),
});
const world = fc.record({
  manager: fc.constantFrom<keyof typeof MANAGERS>('growing', 'reserving'),
  schedule: fc.constantFrom<'plain' | 'overlap'>('plain', 'overlap'),
  tokensPerBlock: fc.integer({ min: 1, max: 6 }),
  groups: fc.array(group, { minLength: 1, maxLength: 3 }),
  hasState: fc.constantFrom(false, false, false, true),
  speculativeTokens: fc.oneof(fc.constant(0), fc.nat({ max: 7 })),
  partialReuse: fc.boolean(),
  chunkTokens: fc.integer({ min: 1, max: 48 }),
  tokenBudget: fc.integer({ min: 2, max: 64 }),
  requests: fc.array(request, { minLength: 1, maxLength: 6 }),
});
type World = typeof world extends fc.Arbitrary<infer T> ? T : never;

function managerOf(w: World): PagedCacheManager {
  const { tokensPerBlock, speculativeTokens, partialReuse } = w;
  const layerGroups: CacheManagerOptions['layerGroups'] = [
    ...w.groups.map(({ sinkTokens, ...rest }) => ({
      kind: 'attention' as const,
      layers: [0],
      tokensPerBlock,
      sinkTokens: rest.windowSize === null ? 0 : sinkTokens,
      ...rest,
    })),
    ...(w.hasState
      ? [
          {
            kind: 'state' as const,
            layers: [1],
            windowSize: null,
            tokensPerBlock,
            slotCount: w.groups[0]?.slotCount ?? 1,
          },
        ]
      : []),
  ];
  return new MANAGERS[w.manager]({
    tokensPerBlock,
    layerGroups,
    speculativeTokens,
    partialReuse,
    mover: { move: () => null },
  });
}

function requestOf(
  { role, promptLen, maxTokens, shared, pipelined }: World['requests'][number],
  id: number,
): LlmRequest {
  const promptTokens = Uint32Array.from({ length: promptLen }, (_, at) => (at < shared ? at : id * 1000 + at));
  const types = { context: 'context_only', generation: 'generation_only' } as const;
  const disagg = role === 'aggregate' ? null : params(types[role], { disaggRequestId: disaggId(id) });
  const transferPolicy = pipelined && role === 'context' ? PIPELINED : WHOLE;
  return createRequest({ id, promptTokens, maxTokens, disagg, transferPolicy });
}

/** By doing it: alone in an empty pool, a token at a time. */
function fitsAlone(cache: PagedCacheManager, of: LlmRequest): boolean {
  const { id, promptTokens, maxTokens } = of;
  const promptLen = promptTokens.length;
  const role = roleOf(of);
  const blockHashes = chainBlockHashes(promptTokens, cache.tokensPerBlock);
  const isReceived = role === 'generation';
  try {
    cache.addRequest(id, { promptLen, blockHashes, ...(isReceived ? { firstToken: promptLen } : {}) });
  } catch (error) {
    if (error instanceof RequestTooLargeError) return false;
    throw error;
  }
  if (isReceived) {
    if (!cache.ensureCapacity(id, promptLen, promptLen)) return false;
    cache.markComputed(id, promptLen);
  }
  const end = role === 'context' ? promptLen : promptLen + maxTokens - 1;
  for (let at = isReceived ? promptLen : 0; at < end; at++) {
    if (!cache.ensureCapacity(id, at + 1)) return false;
    cache.markComputed(id, at + 1);
  }
  return true;
}

/** Holds pages as the ledger does, a while longer than the transfer takes. */
class PinningTransceiver extends FakeTransceiver {
  readonly #clock: FakeClock;
  readonly #cache: PagedCacheManager;
  readonly #world: World;

  constructor(clock: FakeClock, cache: PagedCacheManager, w: World) {
    super([]);
    this.#clock = clock;
    this.#cache = cache;
    this.#world = w;
  }

  override sendEarlyPrefix(of: LlmRequest): SendReceipt | null {
    this.#pin(of);
    return super.sendEarlyPrefix(of);
  }

  override respondAndSendAsync(of: LlmRequest, options: { readonly after: null }): SendReceipt | null {
    this.#pin(of);
    if (of.chunkEnd === of.promptTokens.length) this.#transfer(of);
    return super.respondAndSendAsync(of, options);
  }

  override requestAndReceiveAsync(of: LlmRequest): void {
    this.#pin(of);
    this.#transfer(of);
  }

  #pin({ id, promptTokens }: LlmRequest): void {
    if (this.#cache.isPinned(id)) return;
    const first = this.#cache.layerGroups.map(({ kind, windowSize, tokensPerBlock }) =>
      kind === 'state' ? 0 : staleBlockEnd(promptTokens.length, windowSize, tokensPerBlock),
    );
    this.#cache.pin(id, first);
  }

  #transfer(of: LlmRequest): void {
    const { transferMs, drainMs } = this.#world.requests[of.id - 1] as World['requests'][number];
    this.#clock.setTimer(transferMs, () => this.settle(of, 'completed', { firstTokens: [7] }));
    this.#clock.setTimer(transferMs + drainMs, () => {
      this.#cache.unpin(of.id);
      this.activity();
    });
  }
}

const seen = { refused: 0, completed: 0, windows: 0 };

async function serve(w: World): Promise<void> {
  const clock = new FakeClock();
  const cache = managerOf(w);
  const engine = new FakeEngine([]);
  const { chunkTokens, tokenBudget, schedule } = w;
  const limits = { chunkTokens, tokenBudget, maxTokensInBuffer: null };
  const transceiver = new PinningTransceiver(clock, cache, w);
  const executor = new Executor({ clock, cache, transceiver, engine, schedule, limits });
  const ends = new Map<number, string>();
  const live = new Set<number>();
  for (const [index, plan] of w.requests.entries()) {
    const of = requestOf(plan, index + 1);
    const fits = fitsAlone(managerOf(w), requestOf(plan, index + 1));
    try {
      executor.submit(of, {
        onFinished: ({ error }, outcome) => ends.set(of.id, error === null ? outcome : `${outcome}: ${error.message}`),
      });
      live.add(of.id);
    } catch (error) {
      expect(error).toBeInstanceOf(RequestTooLargeError);
      expect((error as Error).message).toMatch(/enlarge the pool/);
      seen.refused++;
    }
    expect([of.id, live.has(of.id)]).toEqual([of.id, fits]);
  }
  for (let ms = 0; ms < 2000 && ends.size < live.size; ms++) {
    await clock.turn(4);
    await clock.run(1);
  }
  expect(Object.fromEntries(ends)).toEqual(Object.fromEntries([...live].map((id) => [id, 'completed'])));
  await clock.run(50);
  for (const { slotCount, free, reusable, pinned } of cache.stats())
    expect([free + reusable, pinned]).toEqual([slotCount, 0]);
  seen.completed += live.size;
  if (w.groups.some(({ windowSize, slotCount }) => windowSize !== null && slotCount * w.tokensPerBlock < MAX_PROMPT)) {
    seen.windows += live.size;
  }
}

describe('blocks of a request, whatever the pools, windows, sinks and the manager', () => {
  it('are had in the end, or it is refused at once: what is refused could not run alone either', async () => {
    await fc.assert(fc.asyncProperty(world, serve), { numRuns: 3000 });
    expect(seen.refused).toBeGreaterThan(1000);
    expect(seen.completed).toBeGreaterThan(1000);
    expect(seen.windows).toBeGreaterThan(1000);
  }, 180_000);
});
