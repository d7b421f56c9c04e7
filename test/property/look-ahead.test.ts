import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type CacheManagerOptions,
  type CachePrompt,
  chainBlockHashes,
  GrowingCacheManager,
  type PagedCacheManager,
  type PageMove,
  ReservingCacheManager,
} from '../../src/cache/index.js';

const TPB = 2;
const MAX_PROMPT = 24;

/** What goes on while a prompt is being looked for; nothing of it asks for another prompt. */
const action = fc.record({
  kind: fc.constantFrom('fill', 'fill', 'fill', 'free', 'pin', 'unpin'),
  who: fc.nat(),
  by: fc.integer({ min: 1, max: MAX_PROMPT }),
});
const round = fc.record({
  family: fc.integer({ min: 1, max: 2 }),
  fork: fc.nat({ max: MAX_PROMPT }),
  promptLen: fc.integer({ min: 1, max: MAX_PROMPT }),
  /** Blocks looked for before, between and after what goes on; 0: nobody looks. */
  portions: fc.tuple(fc.nat({ max: 12 }), fc.nat({ max: 6 }), fc.nat({ max: 3 })),
  between: fc.tuple(fc.array(action, { maxLength: 3 }), fc.array(action, { maxLength: 2 })),
});
type Action = typeof action extends fc.Arbitrary<infer T> ? T : never;

const group = fc
  .record({
    windowSize: fc.option(fc.integer({ min: 1, max: 16 }), { freq: 2 }),
    sinkTokens: fc.nat({ max: 4 }),
    slotCount: fc.integer({ min: 4, max: 24 }),
    hostSlotCount: fc.oneof(fc.constant(0), fc.integer({ min: 2, max: 16 })),
  })
  .map(({ windowSize, sinkTokens, ...rest }) => ({
    kind: 'attention' as const,
    tokensPerBlock: TPB,
    layers: [0],
    windowSize,
    sinkTokens: windowSize === null ? 0 : sinkTokens,
    ...rest,
  }));
const options = fc.record({
  tokensPerBlock: fc.constant(TPB),
  layerGroups: fc.oneof(fc.tuple(group), fc.tuple(group, group)),
  seed: fc.nat(),
  partialReuse: fc.boolean(),
});

function promptOf(tokens: Uint32Array): CachePrompt {
  return { promptLen: tokens.length, blockHashes: chainBlockHashes(tokens, TPB), tokens };
}

/** Two managers to whom the same happens, except that one of them looks for prompts ahead. */
class Twins {
  readonly seen = { gained: 0, lost: 0, hits: 0 };
  readonly #ahead: PagedCacheManager;
  readonly #plain: PagedCacheManager;
  readonly #moves: [PageMove[], PageMove[]] = [[], []];
  /** Prompt length and computed tokens of each request. */
  readonly #live = new Map<number, { readonly promptLen: number; computed: number }>();
  /** Requests that are pinned, freed ones too. */
  readonly #pinned = new Set<number>();
  #nextId = 1;

  constructor(Manager: typeof GrowingCacheManager, options: CacheManagerOptions) {
    const make = (moves: PageMove[]): PagedCacheManager =>
      new Manager({
        ...options,
        mover: {
          move: (batch) => {
            moves.push(...batch);
            return null;
          },
        },
      });
    this.#ahead = make(this.#moves[0]);
    this.#plain = make(this.#moves[1]);
  }

  look(prompt: CachePrompt, blocks: number): void {
    if (blocks > 0) this.#ahead.lookAhead(prompt, blocks);
  }

  /** `before`: what of the prompt was found when the first of it was looked for. */
  admit(prompt: CachePrompt, before: number): void {
    const id = this.#nextId++;
    const found = this.#both((cache) => {
      try {
        return cache.addRequest(id, prompt).prepopulatedLen;
      } catch (error) {
        return String(error);
      }
    });
    if (typeof found === 'string') return;
    this.#live.set(id, { promptLen: prompt.promptLen, computed: found });
    if (found > before) this.seen.gained++;
    if (found < before) this.seen.lost++;
    if (found > 0) this.seen.hits++;
    this.check();
  }

  /** The tokens that the prompt would find, asked of the one that need not remember what it looked for. */
  locate(prompt: CachePrompt): number {
    return this.#plain.locatePrefix(prompt).prepopulatedLen;
  }

  act({ kind, who, by }: Action): void {
    const ids = [...this.#live.keys()];
    if (ids.length === 0) return;
    const id = ids[who % ids.length] as number;
    const request = this.#live.get(id) as { readonly promptLen: number; computed: number };
    if (kind === 'fill') this.#fill(id, request, by);
    else if (kind === 'pin') {
      if (this.#pinned.has(id)) return;
      this.#pinned.add(id);
      this.#both((cache) => {
        cache.pin(id);
      });
    } else if (kind === 'free') {
      this.#live.delete(id);
      this.#both((cache) => {
        cache.freeRequest(id);
      });
    } else this.#unpin([...this.#pinned][by % this.#pinned.size]);
    this.check();
  }

  check(): void {
    this.#both((cache) => cache.stats());
    for (const [id, { computed }] of this.#live)
      for (const [index] of this.#plain.layerGroups.entries())
        this.#both((cache) => cache.getBlockIdsRange(id, index, 0, Math.ceil(computed / TPB)));
    expect(this.#moves[0]).toEqual(this.#moves[1]);
  }

  end(): void {
    for (const id of this.#live.keys())
      this.#both((cache) => {
        cache.freeRequest(id);
      });
    for (const id of this.#pinned) this.#unpin(id);
    for (const { slotCount, free, reusable, pinned } of this.#both((cache) => cache.stats()))
      expect([free + reusable, pinned]).toEqual([slotCount, 0]);
  }

  /** A chunk of the prompt, or the tokens after it. */
  #fill(id: number, request: { readonly promptLen: number; computed: number }, by: number): void {
    const { promptLen, computed } = request;
    const end = computed < promptLen ? Math.min(promptLen, computed + by) : computed + 2;
    if (!this.#both((cache) => cache.ensureCapacity(id, end))) return;
    this.#both((cache) => {
      cache.markComputed(id, end);
    });
    request.computed = end;
  }

  #unpin(id: number | undefined): void {
    if (id === undefined) return;
    this.#pinned.delete(id);
    this.#both((cache) => {
      cache.unpin(id);
    });
  }

  #both<T>(call: (cache: PagedCacheManager) => T): T {
    const result = call(this.#ahead);
    expect(result).toEqual(call(this.#plain));
    return result;
  }
}

describe.each([
  ['GrowingCacheManager', GrowingCacheManager],
  ['ReservingCacheManager', ReservingCacheManager],
])('%s', (_name, Manager) => {
  it('finds the same whether or not it looked ahead, whatever came and went meanwhile', { timeout: 60_000 }, () => {
    const seen: Record<string, number> = {};
    fc.assert(
      fc.property(options, fc.array(round, { minLength: 4, maxLength: 24, size: 'max' }), (made, rounds) => {
        const twins = new Twins(Manager, made);
        for (const { family, fork, promptLen, portions, between } of rounds) {
          const prompt = promptOf(Uint32Array.from({ length: promptLen }, (_, at) => (at < fork ? 0 : family)));
          const before = twins.locate(prompt);
          portions.forEach((blocks, index) => {
            twins.look(prompt, blocks);
            for (const step of between[index] ?? []) twins.act(step);
          });
          twins.admit(prompt, before);
        }
        twins.end();
        for (const [name, count] of Object.entries(twins.seen)) seen[name] = (seen[name] ?? 0) + count;
      }),
      { numRuns: 200 },
    );
    for (const [name, count] of Object.entries(seen)) expect(count, name).toBeGreaterThan(0);
  });
});
