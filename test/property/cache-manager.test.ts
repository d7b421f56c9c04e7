import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CacheModel } from './cache-model.js';
import type { ModelRequest } from './model-geometry.js';

const MAX_PROMPT = 20;

const step = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constantFrom('add', 'visit', 'visit', 'visit'),
      family: fc.integer({ min: 1, max: 2 }),
      fork: fc.nat({ max: MAX_PROMPT }),
      promptLen: fc.integer({ min: 1, max: MAX_PROMPT }),
      receives: fc.boolean(),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constantFrom('grow', 'pin', 'pinWindow', 'unpin', 'free', 'free', 'run', 'run', 'fail'),
      who: fc.nat(),
      by: fc.nat({ max: 8 }),
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({ kind: fc.constant('fill' as const), who: fc.nat(), by: fc.nat({ max: 8 }) }),
  },
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

const group = fc
  .record({
    window: fc.option(fc.integer({ min: 1, max: 12 }), { freq: 2 }),
    sinkTokens: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 7 })),
    slotCount: fc.integer({ min: 3, max: 14 }),
    hostSlotCount: fc.oneof(fc.constant(0), fc.integer({ min: 4, max: 16 })),
    isState: fc.constant(false),
  })
  .map((shape) => (shape.window === null ? { ...shape, sinkTokens: 0 } : shape));
const state = fc.record({
  window: fc.constant(null),
  sinkTokens: fc.constant(0),
  slotCount: fc.integer({ min: 1, max: 4 }),
  hostSlotCount: fc.constant(0),
  isState: fc.constant(true),
});

const history = fc.record({
  attention: fc.oneof(fc.tuple(group), fc.tuple(group, group)),
  state: fc.oneof({ weight: 8, arbitrary: fc.constant([]) }, { weight: 1, arbitrary: fc.tuple(state) }),
  seed: fc.nat(),
  partialReuse: fc.boolean(),
  speculativeTokens: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 5 })),
  senderTokensPerBlock: fc.constantFrom(1, 1, 2, 3, 3, 6),
  steps: fc.array(step, { minLength: 5, maxLength: 60, size: 'max' }),
});

type Between = Parameters<CacheModel['add']>[2];

/** Prompts that share nothing, and do not all fit the device. */
const visitor = fc.record({
  family: fc.integer({ min: 1, max: 4 }),
  promptLen: fc.integer({ min: 1, max: 36 }),
  /** Until the round is over. */
  stays: fc.boolean(),
});
type Visitor = typeof visitor extends fc.Arbitrary<infer T> ? T : never;
const roomy = fc
  .record({
    window: fc.option(fc.integer({ min: 1, max: 30 }), { freq: 3 }),
    sinkTokens: fc.oneof(fc.constant(0), fc.integer({ min: 1, max: 7 })),
    slotCount: fc.integer({ min: 12, max: 20 }),
    hostSlotCount: fc.integer({ min: 6, max: 48 }),
    isState: fc.constant(false),
  })
  .map((shape) => (shape.window === null ? { ...shape, sinkTokens: 0 } : shape));
const visits = fc.record({
  groups: fc.oneof(fc.tuple(roomy), fc.tuple(roomy, roomy)),
  seed: fc.nat(),
  rounds: fc.array(
    fc.record({
      visitor,
      others: fc.oneof(fc.constant([]), fc.array(fc.option(visitor, { nil: undefined }), { maxLength: 4 })),
    }),
    { minLength: 4, maxLength: 16, size: 'max' },
  ),
});

async function play(model: CacheModel, action: Step): Promise<void> {
  if ('family' in action) {
    const { family, fork, promptLen, receives } = action;
    const tokens = Array.from({ length: promptLen }, (_, position) => (position < fork ? 0 : family));
    if (model.requests.size >= 5) return;
    const id = await model.add(tokens, receives);
    // The whole life of a request, after which its content is idle.
    if (id === null || action.kind === 'add' || !model.grow(id, promptLen)) return;
    await model.fill(id, promptLen);
    model.free(id);
    return;
  }
  if (action.kind === 'unpin') {
    const pinned = [...model.pins.keys()];
    if (pinned.length > 0) model.unpin(pinned[action.who % pinned.length] as number);
    return;
  }
  if (action.kind === 'run') {
    if (model.memory.pending.length > 0) await model.memory.runNext();
    return;
  }
  if (action.kind === 'fail') {
    await model.fail();
    return;
  }
  const ids = [...model.requests.keys()];
  if (ids.length === 0) return;
  const id = ids[action.who % ids.length] as number;
  const request = model.requests.get(id) as ModelRequest;
  if (request.failed) {
    model.free(id);
    return;
  }
  switch (action.kind) {
    case 'fill': {
      // A received prompt comes whole.
      const isPrompt = request.receives && request.computed < request.promptLen;
      const end = isPrompt ? request.promptLen : request.computed + action.by;
      if (model.grow(id, end)) await model.fill(id, end);
      break;
    }
    case 'grow':
      if (!request.receives) model.grow(id, action.by * 3);
      break;
    case 'pin':
    case 'pinWindow':
      if (!model.pins.has(id)) model.pin(id, action.kind === 'pinWindow');
      break;
    case 'free':
      model.free(id);
      break;
  }
}

describe.each([
  ['GrowingCacheManager', false],
  ['ReservingCacheManager', true],
])('%s', (_name, reserving) => {
  it('agrees with a naive model over random histories', { timeout: 120_000 }, async () => {
    const seen: Record<string, number> = {};
    await fc.assert(
      fc.asyncProperty(
        history,
        async ({ attention, state: states, seed, partialReuse, speculativeTokens, senderTokensPerBlock, steps }) => {
          const groups = [...attention, ...states];
          const model = new CacheModel({
            reserving,
            groups,
            seed,
            partialReuse,
            speculativeTokens,
            senderTokensPerBlock,
          });
          for (const [index, action] of steps.entries()) {
            await play(model, action);
            model.check(index, seed + index);
          }
          for (const id of [...model.requests.keys()]) model.free(id);
          for (const id of [...model.pins.keys()]) model.unpin(id);
          for (const { slotCount, free, reusable, pinned } of model.cache.stats()) {
            expect({ idle: free + reusable, pinned }).toEqual({ idle: slotCount, pinned: 0 });
          }
          await model.memory.runAll();
          await model.cache.movesSettled();
          for (const [name, count] of Object.entries(model.seen)) seen[name] = (seen[name] ?? 0) + count;
        },
      ),
      { numRuns: 300 },
    );
    // The histories reach what they are there to test. (Failures in the right moment are rare; the conformance suite has them all.)
    const { failed: _, ahead: __, ...reached } = seen;
    for (const [name, count] of Object.entries(reached)) expect(count, name).toBeGreaterThan(3);
  });

  it('agrees with it over prompts that are brought ahead, while others come and go', { timeout: 120_000 }, async () => {
    let [ahead, alone] = [0, 0];
    await fc.assert(
      fc.asyncProperty(visits, async ({ groups, seed, rounds }) => {
        const rest = { partialReuse: false, speculativeTokens: 0, senderTokensPerBlock: 1 };
        const model = new CacheModel({ reserving, groups, seed, ...rest });
        const visit = async ({ family, promptLen, stays }: Visitor, between: Between): Promise<void> => {
          const id = await model.add(new Array<number>(promptLen).fill(family), false, between);
          if (id === null) return;
          if (model.grow(id, promptLen)) await model.fill(id, promptLen);
          if (!stays) model.free(id);
        };
        for (const { visitor, others } of rounds) {
          const before = model.seen.ahead;
          await visit(visitor, async (portion) => {
            const other = others[portion];
            if (other !== undefined) await visit(other, null);
          });
          model.check(0, 0);
          for (const id of [...model.requests.keys()]) model.free(id);
          if (others.length === 0) alone += model.seen.ahead - before;
        }
        ahead += model.seen.ahead;
        await model.memory.runAll();
      }),
      { numRuns: 300 },
    );
    expect(ahead).toBeGreaterThan(300);
    expect(alone).toBeGreaterThan(100);
  });
});
