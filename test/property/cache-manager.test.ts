import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { chainBlockHashes, GrowingCacheManager } from '../../src/cache/index.js';

const TPB = 2;
const MAX_PROMPT = 24;

interface ModelRequest {
  readonly tokens: number[];
  readonly promptLen: number;
  computed: number;
  end: number;
  /** Per group: ordinal -> slot. */
  readonly blocks: Map<number, number>[];
}

/** What the pages of one cache hold and who holds them, kept the slow way. */
class CacheModel {
  readonly cache: GrowingCacheManager;
  readonly windows: readonly (number | null)[];
  readonly slotCounts: readonly number[];
  readonly requests = new Map<number, ModelRequest>();
  readonly pins = new Map<number, number[][]>();
  /** Per group and slot: the prompt prefix whose last block is there; '' = being written. */
  readonly pages: string[][];
  hits = 0;
  refusals = 0;
  #nextId = 1;

  constructor(windows: readonly (number | null)[], slotCounts: readonly number[], seed: number) {
    this.windows = windows;
    this.slotCounts = slotCounts;
    this.pages = slotCounts.map((count) => new Array<string>(count).fill(''));
    this.cache = new GrowingCacheManager({
      tokensPerBlock: TPB,
      seed,
      layerGroups: windows.map((windowSize, index) => ({
        kind: 'attention',
        windowSize,
        tokensPerBlock: TPB,
        layers: [index],
        slotCount: slotCounts[index] as number,
      })),
    });
  }

  /** Block of `ordinal` is seen by the token that follows `tokens` tokens. */
  seen(index: number, ordinal: number, tokens: number): boolean {
    const window = this.windows[index] ?? null;
    for (let position = ordinal * TPB; position < (ordinal + 1) * TPB; position++) {
      if (window === null || tokens - position < window) return true;
    }
    return false;
  }

  holders(index: number): Set<number> {
    const held = new Set<number>();
    for (const request of this.requests.values())
      for (const slot of request.blocks[index]?.values() ?? []) held.add(slot);
    for (const pinned of this.pins.values()) for (const slot of pinned[index] ?? []) held.add(slot);
    return held;
  }

  add(family: number, fork: number, promptLen: number): void {
    const tokens = Array.from({ length: promptLen }, (_, position) => (position < fork ? 0 : family));
    const blockHashes = chainBlockHashes(Uint32Array.from(tokens), TPB);
    const id = this.#nextId++;
    const neverFits = this.windows.some((_, index) => {
      let blocks = 0;
      for (let ordinal = 0; ordinal * TPB < promptLen; ordinal++) if (this.seen(index, ordinal, promptLen)) blocks++;
      return blocks > (this.slotCounts[index] as number);
    });
    if (neverFits) {
      expect(() => this.cache.addRequest(id, { promptLen, blockHashes })).toThrow(/enlarge the pool/);
      return;
    }
    const { prepopulatedLen } = this.cache.addRequest(id, { promptLen, blockHashes });
    expect(prepopulatedLen % TPB).toBe(0);
    expect(prepopulatedLen).toBeLessThan(promptLen);
    const end = prepopulatedLen / TPB;
    if (end > 0) this.hits++;
    const blocks = this.windows.map((_, index) => {
      const run = this.cache.getBlockIdsRange(id, index, 0, end);
      const slots = new Map<number, number>();
      run.slots.forEach((slot, offset) => {
        slots.set(run.begin + offset, slot);
      });
      // Everything the first computed token sees is there, and nothing else.
      for (let ordinal = 0; ordinal < end; ordinal++) {
        expect(slots.has(ordinal)).toBe(this.seen(index, ordinal, prepopulatedLen));
      }
      return slots;
    });
    this.requests.set(id, { tokens, promptLen, computed: prepopulatedLen, end, blocks });
  }

  grow(id: number, endToken: number, receives: boolean): void {
    const request = this.requests.get(id) as ModelRequest;
    const next = receives ? endToken : request.computed;
    const endBlock = Math.max(request.end, Math.ceil(endToken / TPB));
    const grows = endBlock > request.end;
    const before = JSON.stringify(this.cache.stats());

    const missing: number[][] = [];
    let fits = true;
    this.windows.forEach((_, index) => {
      const wanted: number[] = [];
      for (let ordinal = request.end; ordinal < endBlock; ordinal++)
        if (this.seen(index, ordinal, next)) wanted.push(ordinal);
      missing.push(wanted);
      // What this request would drop counts as room, unless somebody else holds it.
      const own = request.blocks[index] as Map<number, number>;
      const dropped = [...own].filter(([ordinal]) => grows && !this.seen(index, ordinal, next));
      for (const [ordinal] of dropped) own.delete(ordinal);
      if (wanted.length > (this.slotCounts[index] as number) - this.holders(index).size) fits = false;
      for (const [ordinal, slot] of dropped) own.set(ordinal, slot);
    });

    const grown = receives
      ? this.cache.ensureCapacity(id, endToken, endToken)
      : this.cache.ensureCapacity(id, endToken);
    expect(grown).toBe(fits);
    if (!grown) {
      this.refusals++;
      expect(JSON.stringify(this.cache.stats())).toBe(before);
      return;
    }
    this.windows.forEach((_, index) => {
      const own = request.blocks[index] as Map<number, number>;
      for (const ordinal of [...own.keys()]) if (grows && !this.seen(index, ordinal, next)) own.delete(ordinal);
      for (const ordinal of missing[index] ?? []) {
        const [slot] = this.cache.getBlockIdsRange(id, index, ordinal, ordinal + 1).slots;
        if (slot === undefined) throw new Error(`group ${index}: block ${ordinal} was not allocated`);
        expect(this.holders(index).has(slot)).toBe(false);
        own.set(ordinal, slot);
        this.pins.get(id)?.[index]?.push(slot);
        (this.pages[index] as string[])[slot] = '';
      }
    });
    request.end = endBlock;
  }

  compute(id: number, endToken: number): void {
    const request = this.requests.get(id) as ModelRequest;
    this.windows.forEach((_, index) => {
      for (const [ordinal, slot] of request.blocks[index] ?? []) {
        if (ordinal >= Math.floor(request.computed / TPB) && (ordinal + 1) * TPB <= endToken) {
          (this.pages[index] as string[])[slot] = this.#prefix(request, ordinal);
        }
      }
    });
    this.cache.markComputed(id, endToken);
    request.computed = endToken;
    request.blocks.forEach((own, index) => {
      for (const ordinal of [...own.keys()]) if (!this.seen(index, ordinal, endToken)) own.delete(ordinal);
    });
  }

  pin(id: number): void {
    this.cache.pin(id);
    this.pins.set(
      id,
      (this.requests.get(id) as ModelRequest).blocks.map((own) => [...own.values()]),
    );
  }

  unpin(id: number): void {
    this.cache.unpin(id);
    this.pins.delete(id);
  }

  free(id: number): void {
    this.cache.freeRequest(id);
    this.requests.delete(id);
  }

  check(): void {
    const stats = this.cache.stats();
    this.windows.forEach((_, index) => {
      const pinned = new Set([...this.pins.values()].flatMap((slots) => slots[index] ?? []));
      expect(stats[index]?.pinned).toBe(pinned.size);
      const idle = (stats[index]?.free ?? 0) + (stats[index]?.reusable ?? 0);
      expect(idle).toBe((this.slotCounts[index] as number) - this.holders(index).size);
    });
    for (const [id, request] of this.requests) {
      expect(this.cache.isPinned(id)).toBe(this.pins.has(id));
      request.blocks.forEach((own, index) => {
        const run = this.cache.getBlockIdsRange(id, index, 0, request.end);
        expect([...run.slots]).toEqual([...own].sort(([x], [y]) => x - y).map(([, slot]) => slot));
        expect(run.begin + run.slots.length).toBe(request.end);
        // No slot serves two blocks of one request, and what was computed or reused is still there.
        expect(new Set(run.slots).size).toBe(run.slots.length);
        for (const [ordinal, slot] of own) {
          if ((ordinal + 1) * TPB <= Math.min(request.computed, request.promptLen)) {
            expect(this.pages[index]?.[slot]).toBe(this.#prefix(request, ordinal));
          }
        }
      });
    }
  }

  #prefix(request: ModelRequest, ordinal: number): string {
    return request.tokens.slice(0, (ordinal + 1) * TPB).join();
  }
}

const step = fc.oneof(
  fc.record({
    kind: fc.constant('add' as const),
    family: fc.integer({ min: 1, max: 2 }),
    fork: fc.nat({ max: MAX_PROMPT }),
    promptLen: fc.integer({ min: 1, max: MAX_PROMPT }),
  }),
  fc.record({
    kind: fc.constantFrom('chunk', 'grow', 'receive', 'pin', 'unpin', 'free'),
    who: fc.nat(),
    by: fc.nat({ max: 8 }),
  }),
  fc.record({ kind: fc.constant('chunk' as const), who: fc.nat(), by: fc.nat({ max: 8 }) }),
);

const history = fc.record({
  windows: fc.array(fc.option(fc.integer({ min: 1, max: 12 })), { minLength: 1, maxLength: 3 }),
  slots: fc.array(fc.integer({ min: 1, max: 30 }), { minLength: 3, maxLength: 3 }),
  seed: fc.nat(),
  steps: fc.array(step, { minLength: 5, maxLength: 60 }),
});

function play(model: CacheModel, action: typeof step extends fc.Arbitrary<infer T> ? T : never): void {
  if (action.kind === 'add') {
    if (model.requests.size < 5) model.add(action.family, action.fork, action.promptLen);
    return;
  }
  if (action.kind === 'unpin') {
    const pinned = [...model.pins.keys()];
    if (pinned.length > 0) model.unpin(pinned[action.who % pinned.length] as number);
    return;
  }
  const ids = [...model.requests.keys()];
  if (ids.length === 0) return;
  const id = ids[action.who % ids.length] as number;
  const request = model.requests.get(id) as ModelRequest;
  switch (action.kind) {
    case 'chunk':
      model.grow(id, request.computed + action.by, false);
      if (request.end * TPB >= request.computed + action.by) model.compute(id, request.computed + action.by);
      break;
    case 'grow':
      model.grow(id, action.by * 3, false);
      break;
    case 'receive':
      if (request.computed < request.promptLen) model.grow(id, request.promptLen, true);
      break;
    case 'pin':
      if (!model.pins.has(id)) model.pin(id);
      break;
    case 'free':
      model.free(id);
      break;
  }
}

describe('GrowingCacheManager', () => {
  it('agrees with a naive model over random histories', () => {
    const seen = { hits: 0, refusals: 0 };
    fc.assert(
      fc.property(history, ({ windows, slots, seed, steps }) => {
        const model = new CacheModel(windows, slots.slice(0, windows.length), seed);
        for (const action of steps) {
          play(model, action);
          model.check();
        }
        for (const id of [...model.requests.keys()]) model.free(id);
        for (const id of [...model.pins.keys()]) model.unpin(id);
        for (const { slotCount, free, reusable, pinned } of model.cache.stats()) {
          expect({ idle: free + reusable, pinned }).toEqual({ idle: slotCount, pinned: 0 });
        }
        seen.hits += model.hits;
        seen.refusals += model.refusals;
      }),
      { numRuns: 600 },
    );
    // The histories reach what they are there to test.
    expect(seen.hits).toBeGreaterThan(100);
    expect(seen.refusals).toBeGreaterThan(100);
  });
});
