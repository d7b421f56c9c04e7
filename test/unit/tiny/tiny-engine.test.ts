import { describe, expect, it } from 'vitest';
import { ConfigError, InternalError, PeerLostError, TransportError } from '../../../src/errors.js';
import { TINY_MODEL, TinyEngine, type TinyModelConfig } from '../../../src/executor/engines/tiny/index.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';
import { denseForward, denseGreedy } from './dense-reference.js';
import { EngineBench, type EngineRank } from './engine-bench.js';

const SINKS: TinyModelConfig = {
  ...TINY_MODEL,
  seed: 3,
  layers: [{ windowSize: 7, sinkTokens: 6 }, { windowSize: null }, { windowSize: 7, sinkTokens: 6 }],
};
const ODD_SHAPE: TinyModelConfig = {
  seed: 9,
  vocabularySize: 97,
  modelDim: 20,
  attentionHeads: 6,
  kvHeads: 2,
  headDim: 4,
  mlpDim: 17,
  layers: [{ windowSize: 5 }, { windowSize: 16 }, { windowSize: null }],
};

function randomPrompt(length: number, seed = 1): number[] {
  const random = seededRandom(seed);
  return Array.from({ length }, () => Math.floor(random() * 1024));
}

function toBfloat16(value: number): number {
  const bits = new Uint32Array(Float32Array.of(value).buffer);
  const word = bits[0] ?? 0;
  // Nearest, ties to even.
  const lower = word & 0xffff;
  let upper = word >>> 16;
  if (lower > 0x8000 || (lower === 0x8000 && upper % 2 === 1)) upper += 1;
  return new Float32Array(Uint32Array.of(upper * 65536).buffer)[0] ?? 0;
}

/** All elements of a page of one role, decoded by the layout that the page table states. */
function pageValue(
  { agent, cache, table }: EngineRank,
  place: { group: number; layer: number; role: 'key' | 'value'; token: number; head: number; element: number },
): number {
  const { tokensPerBlock } = cache;
  const ordinal = Math.floor(place.token / tokensPerBlock);
  const slot = cache.getBlockIdsRange(1, place.group, ordinal, ordinal + 1).slots[0] ?? -1;
  const view = table.layerGroups[place.group]?.views.find(({ role }) => role === place.role);
  const entry = view?.layers.find(({ layer }) => layer === place.layer);
  const pool = table.pools[entry?.pool ?? -1];
  if (view === undefined || entry === undefined || pool === undefined) throw new Error('no such page');
  const inBlock = place.token % tokensPerBlock;
  const row = view.layout === 'HND' ? place.head * tokensPerBlock + inBlock : inBlock * view.headsPerRank + place.head;
  const elementBytes = view.dtype === 'float32' ? 4 : 2;
  const at = pool.base + slot * pool.slotStride + entry.offset + (row * view.headDim + place.element) * elementBytes;
  const bytes = agent.readBytes(at, elementBytes);
  const word = elementBytes === 4 ? bytes : Uint8Array.of(0, 0, ...bytes);
  return new DataView(word.buffer, word.byteOffset).getFloat32(0, true);
}

describe('tiny engine against a dense reference', () => {
  const cases = [
    ['full and windowed layers', TINY_MODEL, 37],
    ['sinks beside a window', SINKS, 41],
    ['three groups, odd sizes', ODD_SHAPE, 30],
    ['a prompt of one token', TINY_MODEL, 1],
  ] as const;
  for (const [name, config, length] of cases)
    for (const dtype of ['float32', 'bfloat16'] as const)
      it(`says the same tokens: ${name}, ${dtype}`, async () => {
        const prompt = randomPrompt(length);
        const bench = await EngineBench.create({ config, dtype });
        const tokens = await bench.generate(prompt, [5, 8, 1], 6);
        const round = dtype === 'float32' ? Math.fround : toBfloat16;
        expect(tokens).toEqual(denseGreedy(config, bench.model.weights, prompt, 6, round));
      });

  for (const blockLayout of ['HND', 'NHD'] as const)
    for (const poolLayout of ['per-layer', 'per-block'] as const)
      it(`keys and values lie where the page table says: ${blockLayout}, ${poolLayout}`, async () => {
        const prompt = randomPrompt(11);
        const bench = await EngineBench.create({ config: ODD_SHAPE, blockLayout, poolLayout, tpSize: 2 });
        await bench.generate(prompt, [3], 1);
        const { layers } = denseForward(ODD_SHAPE, bench.model.weights, prompt, Math.fround);
        for (const [rank, memory] of bench.ranks.entries())
          for (const layer of [0, 1, 2])
            for (let token = 8; token < 11; token++)
              for (let element = 0; element < ODD_SHAPE.headDim; element++)
                for (const role of ['key', 'value'] as const) {
                  const kv = layers[layer]?.[role === 'key' ? 'keys' : 'values'];
                  // Two ranks, two KV heads: rank r holds head r as its first.
                  const found = pageValue(memory, { group: layer, layer, role, token, head: 0, element });
                  expect(found).toBeCloseTo(kv?.[token]?.[rank]?.[element] ?? Number.NaN, 4);
                }
      });
});

describe('tiny engine: the split of the work changes no token', () => {
  it('chunks, block sizes, layouts and ranks', async () => {
    const prompt = randomPrompt(33, 4);
    const config = SINKS;
    const plain = await (await EngineBench.create({ config })).generate(prompt, [], 8);
    const setups = [
      { chunks: [1, 1, 1, 2, 3, 5, 8], tokensPerBlock: 4 },
      { chunks: [16], tokensPerBlock: 8, blockLayout: 'NHD' as const },
      { chunks: [7, 7, 7], tokensPerBlock: 1, poolLayout: 'per-block' as const },
      { chunks: [10], tpSize: 2 },
      { chunks: [4, 20], tpSize: 4, blockLayout: 'NHD' as const },
    ];
    for (const { chunks, ...setup } of setups)
      expect(
        await (await EngineBench.create({ config, ...setup })).generate(prompt, chunks, 8),
        JSON.stringify(setup),
      ).toEqual(plain);
  });

  it('a batch of other requests', async () => {
    const prompts = [randomPrompt(20, 1), randomPrompt(9, 2), randomPrompt(26, 3)];
    const alone = [];
    for (const prompt of prompts)
      alone.push(await (await EngineBench.create({ config: TINY_MODEL })).generate(prompt, [], 5));
    const bench = await EngineBench.create({ config: TINY_MODEL, tpSize: 2 });
    const [a, b, c] = prompts.map((prompt, index) => bench.add(index + 1, prompt)) as [Req, Req, Req];
    await bench.step([bench.work(a, 6), bench.work(b, 9)]);
    await bench.step([bench.work(c, 26), bench.work(a, 20), bench.work(b)]);
    for (let i = 0; i < 4; i++) await bench.step([bench.work(a), bench.work(c), ...(i < 3 ? [bench.work(b)] : [])]);
    expect([a, b, c].map(({ outputTokens }) => outputTokens)).toEqual(alone);
  });

  it('seeded sampling draws by position and seed alone', async () => {
    const prompt = randomPrompt(12, 6);
    const run = async (seed: number, chunks: readonly number[]): Promise<number[]> => {
      const samplingOf = () => ({ kind: 'seeded', seed, temperature: 1 }) as const;
      return (await EngineBench.create({ config: TINY_MODEL, samplingOf })).generate(prompt, chunks, 8);
    };
    const tokens = await run(1, []);
    expect(await run(1, [5])).toEqual(tokens);
    expect(await run(2, [])).not.toEqual(tokens);
    expect(tokens).not.toEqual(await (await EngineBench.create({ config: TINY_MODEL })).generate(prompt, [], 8));
  });
});

describe('tiny engine: turns', () => {
  /** Each look finds a millisecond gone. */
  class HastyClock extends FakeClock {
    turns = 0;
    #looks = 0;

    override now(): number {
      return this.#looks++;
    }

    override nextTurn(): Promise<void> {
      this.turns += 1;
      return Promise.resolve();
    }
  }

  it('a long chunk gives the event loop its turns, one in a few rows', async () => {
    const clock = new HastyClock();
    const bench = await EngineBench.create({ config: TINY_MODEL, clock });
    await bench.generate(randomPrompt(64), [], 1);
    // Per layer each row is projected, attends and is finished; three looks of a millisecond spend the 2 ms of a turn.
    expect(clock.turns).toBeGreaterThanOrEqual((64 * 3 * TINY_MODEL.layers.length) / 4);
  });
});

type Req = ReturnType<EngineBench['add']>;

describe('tiny engine: steps that are enqueued ahead', () => {
  it('feed what the step before samples, before anybody has read it', async () => {
    const bench = await EngineBench.create({ config: TINY_MODEL, tpSize: 1 });
    const request = bench.add(1, randomPrompt(6));
    const [{ cache, engine }] = bench.ranks as [EngineRank];
    cache.ensureCapacity(1, 9);
    const at = (position: number) => ({ request, chunkStart: position, chunkEnd: position });
    const forwards = [
      await engine.forward({ context: [bench.work(request, 6)], generation: [] }),
      await engine.forward({ context: [], generation: [at(6)] }),
      await engine.forward({ context: [], generation: [at(7)] }),
    ];
    expect(request.outputTokens).toEqual([]);
    const said = await Promise.all(forwards.map(async ({ tokens }) => (await tokens).get(request)));
    expect(said).toEqual(denseGreedy(TINY_MODEL, bench.model.weights, randomPrompt(6), 3, Math.fround));
  });

  it('leave out what rests on a step that failed; the others of the batch do not notice', async () => {
    const bench = await EngineBench.create({ config: TINY_MODEL, tpSize: 1 });
    const [lost, other] = [bench.add(1, randomPrompt(6)), bench.add(2, randomPrompt(9))];
    const [{ cache, engine }] = bench.ranks as [EngineRank];
    for (const { id } of [lost, other]) cache.ensureCapacity(id, 10);
    const done = Promise.reject(new TransportError('pages did not come'));
    done.catch(() => {});
    const failed = await engine.forward({
      context: [{ ...bench.work(lost, 6), pagesReady: { event: null, done } }],
      generation: [],
    });
    const ahead = await engine.forward({
      context: [bench.work(other, 9)],
      generation: [{ request: lost, chunkStart: 6, chunkEnd: 6 }],
    });
    await expect(failed.tokens).rejects.toThrow(/did not come/);
    const said = await ahead.tokens;
    expect(said.has(lost)).toBe(false);
    const right = denseGreedy(TINY_MODEL, bench.model.weights, randomPrompt(9), 1, Math.fround);
    expect([said.get(other)]).toEqual(right);
  });
});

describe('tiny engine: failures', () => {
  it('a forward whose pages never came fails with its event, on every rank; the next one runs', async () => {
    const bench = await EngineBench.create({ config: TINY_MODEL, tpSize: 2 });
    const request = bench.add(1, randomPrompt(6));
    const failed = new TransportError('pages did not come');
    const done = Promise.reject(failed);
    done.catch(() => {});
    const pagesReady = { event: null, done };
    for (const { cache } of bench.ranks) cache.ensureCapacity(1, 6);
    const forwards = await Promise.all(
      bench.ranks.map(({ engine }, rank) =>
        engine.forward({
          context: [{ ...bench.work(request, 6), ...(rank === 0 ? { pagesReady } : {}) }],
          generation: [],
        }),
      ),
    );
    for (const { tokens } of forwards) await expect(tokens).rejects.toBe(failed);
    expect(forwards.map(({ event }) => (event as unknown as { state: string }).state)).toEqual(['failed', 'failed']);
    await bench.step([bench.work(request, 6)]);
    expect(request.outputTokens).toEqual(denseGreedy(TINY_MODEL, bench.model.weights, randomPrompt(6), 1, Math.fround));
  });

  it('a rank that finds no pages fails the forward on the others, and the ranks stay in step', async () => {
    const bench = await EngineBench.create({ config: TINY_MODEL, tpSize: 2 });
    const request = bench.add(1, randomPrompt(6));
    const [first, second] = bench.ranks as [EngineRank, EngineRank];
    first.cache.ensureCapacity(1, 6);
    const batch = { context: [bench.work(request, 6)], generation: [] };
    const { tokens } = await first.engine.forward(batch);
    await expect(second.engine.forward(batch)).rejects.toThrow(/no pages/);
    await expect(tokens).rejects.toThrow(/no pages/);
    await bench.step([bench.work(request, 6)]);
    expect(request.outputTokens).toHaveLength(1);
  });

  it('ranks that run different batches, or lose one of them, fail', async () => {
    const bench = await EngineBench.create({ config: TINY_MODEL, tpSize: 2 });
    const request = bench.add(1, randomPrompt(6));
    const [first, second] = bench.ranks as [EngineRank, EngineRank];
    for (const { cache } of bench.ranks) cache.ensureCapacity(1, 6);
    const run = async ({ engine }: EngineRank, end: number) =>
      (await engine.forward({ context: [bench.work(request, end)], generation: [] })).tokens;
    const outcomes = await Promise.allSettled([run(first, 6), run(second, 5)]);
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({ status: 'rejected', reason: expect.any(InternalError) });
      expect(String((outcome as PromiseRejectedResult).reason)).toContain('1[0,6), and 1[0,5)');
    }
    const waiting = run(first, 6);
    const lost = expect(waiting).rejects.toThrow(PeerLostError);
    await Promise.resolve();
    second.tensorGroup.close();
    await lost;
    await expect(run(first, 6)).rejects.toThrow(/tensor parallel rank 1 is gone/);
  });

  it('a token that is needed and has no page is an error, not a guess', async () => {
    const bench = await EngineBench.create({ config: TINY_MODEL });
    const request = bench.add(1, randomPrompt(40));
    await bench.step([bench.work(request, 40)]);
    // The windowed group kept the end only; going back finds no pages.
    const { tokens } = await (bench.ranks[0] as EngineRank).engine.forward({
      context: [{ request, chunkStart: 0, chunkEnd: 40 }],
      generation: [],
    });
    await expect(tokens).rejects.toThrow(/token 0 is needed and block 0 has no page/);
  });

  it('page tables and models that do not fit are refused', async () => {
    const { ranks, model } = await EngineBench.create({ config: TINY_MODEL });
    const [{ agent, cache, table }] = ranks as [EngineRank];
    const build = (more: object) => () =>
      new TinyEngine({ clock: new FakeClock(), agent, cache, pageTable: table, model, ...more });
    const [group] = table.layerGroups;
    const withGroup = (change: object) => ({
      pageTable: { ...table, layerGroups: [{ ...group, ...change }, ...table.layerGroups.slice(1)] },
    });
    const withViews = (change: object) => withGroup({ views: group?.views.map((view) => ({ ...view, ...change })) });
    expect(build({})).not.toThrow();
    expect(build(withGroup({ windowSize: 8 }))).toThrow(/windowSize of layer 0 is 8 in the page table and null/);
    expect(build(withViews({ dtype: 'float16' }))).toThrow(/use 'float32' or 'bfloat16'/);
    expect(build(withViews({ headsPerRank: 1 }))).toThrow(/headsPerRank of layer 0 is 1 .* and 2/);
    expect(build(withViews({ layout: 'REPLICATED' }))).toThrow(ConfigError);
    expect(build({ pageTable: { ...table, layerGroups: [] } })).toThrow(/no key pages of layer 0/);
    expect(build({ tensorGroup: { rank: 0, size: 3 } })).toThrow(/4 heads cannot be split over 3 ranks/);
    const device = table.pools.map((pool) => ({ ...pool, memory: { kind: 'device', deviceId: 0 } }));
    expect(build({ pageTable: { ...table, pools: device } })).toThrow(/use host pools/);
  });

  it('models out of range are refused', async () => {
    const create = (change: object) => EngineBench.create({ config: { ...TINY_MODEL, ...change } });
    await expect(create({ headDim: 7 })).rejects.toThrow(/headDim is 7; it must be even/);
    await expect(create({ kvHeads: 3 })).rejects.toThrow(/multiple of kvHeads, 3/);
    await expect(create({ layers: [] })).rejects.toThrow(/layers is empty/);
    await expect(create({ mlpDim: 0 })).rejects.toThrow(/mlpDim is 0/);
    await expect(create({ layers: [{ windowSize: null, sinkTokens: 4 }] })).rejects.toThrow(/sinkTokens is 4/);
    await expect(create({ seed: 0.5 })).rejects.toThrow(ConfigError);
  });
});
