import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CONTENT_ROLES } from '../../../src/agent/content-entries.js';
import { createAgent } from '../../../src/agent/native-agent.js';
import { createPageContent } from '../../../src/agent/native-page-content.js';
import type { ContentJob, PageContent } from '../../../src/agent/page-content.js';
import type { Pool, TransferAgent } from '../../../src/agent/transfer-agent.js';
import { ArgumentError, StateError } from '../../../src/errors.js';
import { HOLE } from '../../../src/geometry/block-run.js';
import type { LayerView, PageTable, ViewLayout, ViewRole } from '../../../src/mapping/page-table.js';

// The content rule, written again from its description: no code of the addon or of src takes part.
const MASK = (1n << 64n) - 1n;

function finalise(value: bigint): bigint {
  let x = value;
  x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return x ^ (x >> 31n);
}

function mix(state: bigint, value: bigint): bigint {
  return finalise(state ^ (((value + 1n) * 0x9e3779b97f4a7c15n) & MASK));
}

function oracleSeeds(tokens: Uint32Array): BigUint64Array {
  let seed = 0x6b767472616e7363n;
  return BigUint64Array.from(tokens, (token) => {
    seed = mix(seed, BigInt(token));
    return seed;
  });
}

/** Bytes of one head and one token. */
function oracleToken(seed: bigint, layer: number, role: number, head: number, length: number): Uint8Array {
  const tag = mix(mix(mix(0x243f6a8885a308d3n, BigInt(layer)), BigInt(role)), BigInt(head));
  const base = finalise(seed ^ tag);
  return Uint8Array.from({ length }, (_, i) => {
    const word = (base + BigInt(i >> 3) * 0xd1342543de82ef95n) & MASK;
    return Number((word >> BigInt(8 * (i & 7))) & 0xffn);
  });
}

const DTYPE_BYTES: Readonly<Record<string, number>> = { bfloat16: 2, float16: 2, float8_e4m3: 1, float32: 4 };

/** Writes what a job must write into `bytes`, a copy of the pool. */
function oracleFill(bytes: Uint8Array, job: ContentJob): number {
  const group = job.table.layerGroups[job.group];
  if (group === undefined) throw new Error('no such group');
  let written = 0;
  for (const view of group.views) {
    const heads = view.layout === 'REPLICATED' ? 1 : view.headsPerRank;
    const length = view.headDim * (DTYPE_BYTES[view.dtype] as number);
    for (const { layer, pool, offset } of view.layers) {
      const { base, slotStride } = job.table.pools[pool] as PageTable['pools'][number];
      job.run.slots.forEach((slot, i) => {
        for (let t = 0; slot !== HOLE && t < group.tokensPerBlock; t++) {
          const token = (job.run.begin + i) * group.tokensPerBlock + t;
          if (token < job.tokenBegin || token >= job.tokenEnd) continue;
          for (let h = 0; h < heads; h++) {
            const place = view.layout === 'NHD' ? t * heads + h : h * group.tokensPerBlock + t;
            const head = view.layout === 'REPLICATED' ? 0 : job.firstHead + h;
            const at = base - (job.table.pools[0]?.base ?? 0) + slot * slotStride + offset + place * length;
            const seed = job.tokenSeeds[token] as bigint;
            bytes.set(oracleToken(seed, layer, CONTENT_ROLES.indexOf(view.role), head, length), at);
            written += length;
          }
        }
      });
    }
  }
  return written;
}

const TOKENS_PER_BLOCK = 4;
const SLOT_COUNT = 6;

interface ViewShape {
  readonly role: ViewRole;
  readonly layout: ViewLayout;
  readonly dtype: string;
  readonly heads: number;
  readonly headDim: number;
}

function tableOf(base: number, shapes: readonly ViewShape[], layerCount = 2): PageTable {
  let offset = 0;
  const views: LayerView[] = shapes.map(({ role, layout, dtype, heads, headDim }) => ({
    role,
    layout,
    dtype,
    headsPerRank: heads,
    headDim,
    layers: Array.from({ length: layerCount }, (_, layer) => {
      const bytes = heads * TOKENS_PER_BLOCK * headDim * (DTYPE_BYTES[dtype] as number);
      const entry = { layer: 10 + layer, pool: 0, offset, bytes };
      offset += bytes;
      return entry;
    }),
  }));
  return {
    pools: [{ base, memory: { kind: 'host' }, slotBytes: offset, slotStride: offset + 24, slotCount: SLOT_COUNT }],
    layerGroups: [
      { kind: 'attention', windowSize: null, tokensPerBlock: TOKENS_PER_BLOCK, slotCount: SLOT_COUNT, views },
    ],
    aux: null,
  };
}

const SHAPES: Readonly<Record<string, readonly ViewShape[]>> = {
  'keys and values, head-major, bfloat16': [
    { role: 'key', layout: 'HND', dtype: 'bfloat16', heads: 2, headDim: 64 },
    { role: 'value', layout: 'HND', dtype: 'bfloat16', heads: 2, headDim: 64 },
  ],
  'keys and values, token-major, float8': [
    { role: 'key', layout: 'NHD', dtype: 'float8_e4m3', heads: 3, headDim: 20 },
    { role: 'value', layout: 'NHD', dtype: 'float8_e4m3', heads: 3, headDim: 20 },
  ],
  'a latent and its index, replicated': [
    { role: 'latent', layout: 'REPLICATED', dtype: 'bfloat16', heads: 1, headDim: 576 },
    { role: 'index_k', layout: 'REPLICATED', dtype: 'float32', heads: 1, headDim: 3 },
  ],
};

describe('page content', () => {
  const tokens = Uint32Array.from({ length: 24 }, (_, i) => (i * 7919) % 32000);
  let agent: TransferAgent;
  let pool: Pool;
  let content: PageContent;

  beforeAll(async () => {
    agent = await createAgent({ kind: 'host', name: 'content' });
    pool = await agent.allocatePool({ sizeBytes: 1 << 16 });
    content = createPageContent();
  });
  afterAll(async () => {
    await agent.close(5000);
  });

  function jobOf(shapes: readonly ViewShape[], fields: Partial<ContentJob> = {}): ContentJob {
    return {
      table: tableOf(pool.base, shapes),
      group: 0,
      run: { begin: 1, slots: Int32Array.of(4, HOLE, 0, 3) },
      tokenBegin: 5,
      tokenEnd: 18,
      tokenSeeds: content.chainTokenSeeds(tokens),
      firstHead: 6,
      ...fields,
    };
  }

  it('chains seeds as the rule says', () => {
    expect(content.chainTokenSeeds(tokens)).toEqual(oracleSeeds(tokens));
    expect(content.chainTokenSeeds(new Uint32Array(0))).toEqual(new BigUint64Array(0));
    const other = tokens.slice();
    other[10] = 1;
    const [a, b] = [content.chainTokenSeeds(tokens), content.chainTokenSeeds(other)];
    expect(a.subarray(0, 10)).toEqual(b.subarray(0, 10));
    for (let i = 10; i < tokens.length; i++) expect(a[i]).not.toBe(b[i]);
  });

  describe.each(Object.entries(SHAPES))('%s', (_name, shapes) => {
    it('writes the bytes of the rule and no others', async () => {
      const blank = new Uint8Array(pool.sizeBytes).fill(0xee);
      agent.writeBytes(pool.base, blank);
      const job = jobOf(shapes);
      const expected = blank.slice();
      const written = oracleFill(expected, job);
      expect(await content.fill(job)).toEqual({ bytesWritten: written });
      expect(agent.readBytes(pool.base, pool.sizeBytes)).toEqual(expected);
      expect(await content.verify(job)).toEqual({ bytesChecked: written, wrongBytes: 0, firstWrong: null });
    });

    it('counts wrong bytes and names the first', async () => {
      const job = jobOf(shapes);
      const bytes = new Uint8Array(pool.sizeBytes);
      const written = oracleFill(bytes, job);
      const { slotStride } = job.table.pools[0] as PageTable['pools'][number];
      const view = job.table.layerGroups[0]?.views[1] as LayerView;
      // The last byte of the last head of the first token of the block at ordinal 3 (slot 0), in the second layer.
      const length = view.headDim * (DTYPE_BYTES[view.dtype] as number);
      const heads = view.layout === 'REPLICATED' ? 1 : view.headsPerRank;
      const place = view.layout === 'NHD' ? heads - 1 : (heads - 1) * TOKENS_PER_BLOCK;
      const at = 0 * slotStride + (view.layers[1]?.offset as number) + (place + 1) * length - 1;
      bytes[at] = (bytes[at] as number) ^ 1;
      agent.writeBytes(pool.base, bytes);
      expect(await content.verify(job)).toEqual({
        bytesChecked: written,
        wrongBytes: 1,
        firstWrong: {
          layer: 11,
          role: view.role,
          head: view.layout === 'REPLICATED' ? 0 : 6 + heads - 1,
          token: 3 * TOKENS_PER_BLOCK,
        },
      });
      agent.writeBytes(pool.base, new Uint8Array(pool.sizeBytes));
      const empty = await content.verify(job);
      expect(empty.bytesChecked).toBe(written);
      const zeros = new Uint8Array(pool.sizeBytes);
      const right = new Uint8Array(pool.sizeBytes);
      oracleFill(right, job);
      expect(empty.wrongBytes).toBe(zeros.reduce((count, byte, i) => count + (byte === right[i] ? 0 : 1), 0));
    });
  });

  it('sees pages of another prompt, swapped slots and another rank’s heads', async () => {
    const job = jobOf(SHAPES['keys and values, head-major, bfloat16'] as readonly ViewShape[]);
    await content.fill(job);
    const swapped = { ...job, run: { begin: 1, slots: Int32Array.of(0, HOLE, 4, 3) } };
    const otherPrompt = { ...job, tokenSeeds: content.chainTokenSeeds(tokens.map((token) => token + 1)) };
    const otherHeads = { ...job, firstHead: 7 };
    for (const wrong of [swapped, otherPrompt, otherHeads]) {
      const { wrongBytes, bytesChecked } = await content.verify(wrong);
      expect(wrongBytes).toBeGreaterThan(bytesChecked / 3);
    }
  });

  it('touches nothing when no token of the range is in the blocks', async () => {
    const shapes = SHAPES['keys and values, head-major, bfloat16'] as readonly ViewShape[];
    expect(await content.fill(jobOf(shapes, { tokenBegin: 0, tokenEnd: 4 }))).toEqual({ bytesWritten: 0 });
    expect(await content.fill(jobOf(shapes, { tokenBegin: 9, tokenEnd: 9 }))).toEqual({ bytesWritten: 0 });
    expect(await content.verify(jobOf(shapes, { tokenBegin: 9, tokenEnd: 7 }))).toMatchObject({ bytesChecked: 0 });
  });

  it('skips the ordinals between those of a run with a stride', async () => {
    const shapes = SHAPES['keys and values, head-major, bfloat16'] as readonly ViewShape[];
    const strided = jobOf(shapes, { run: { begin: 1, slots: Int32Array.of(4, 0), stride: 2 }, tokenEnd: 18 });
    const spelled = { ...strided, run: { begin: 1, slots: Int32Array.of(4, HOLE, 0) } };
    agent.writeBytes(pool.base, new Uint8Array(pool.sizeBytes));
    const expected = new Uint8Array(pool.sizeBytes);
    const written = oracleFill(expected, spelled);
    expect(written).toBeGreaterThan(0);
    expect(await content.fill(strided)).toEqual({ bytesWritten: written });
    expect(agent.readBytes(pool.base, pool.sizeBytes)).toEqual(expected);
    expect(
      (await content.verify({ ...strided, run: { begin: 1, slots: Int32Array.of(4, 0) } })).wrongBytes,
    ).toBeGreaterThan(0);
    for (const stride of [0, -1, 1.5]) {
      await expect(content.fill({ ...strided, run: { ...strided.run, stride } })).rejects.toBeInstanceOf(ArgumentError);
    }
  });

  it('tells K from V inside one entry, and the scales of both', async () => {
    const shapes: readonly ViewShape[] = [
      { role: 'kv', layout: 'NHD', dtype: 'bfloat16', heads: 2, headDim: 4 },
      { role: 'scale', layout: 'NHD', dtype: 'float32', heads: 2, headDim: 1 },
    ];
    const job = jobOf(shapes);
    const [group] = job.table.layerGroups as [PageTable['layerGroups'][number]];
    // Both roles hold two planes: twice the bytes of one.
    let offset = 0;
    const views = group.views.map((view) => ({
      ...view,
      layers: view.layers.map((entry) => {
        const placed = { ...entry, offset, bytes: entry.bytes * 2 };
        offset += placed.bytes;
        return placed;
      }),
    }));
    const [poolSpec] = job.table.pools as [PageTable['pools'][number]];
    const pools = [{ ...poolSpec, slotBytes: offset, slotStride: offset }];
    const two: ContentJob = { ...job, table: { ...job.table, pools, layerGroups: [{ ...group, views }] } };
    const { bytesWritten } = await content.fill(two);
    expect(await content.verify(two)).toEqual({ bytesChecked: bytesWritten, wrongBytes: 0, firstWrong: null });
    const planeBytes = 2 * TOKENS_PER_BLOCK * 4 * 2;
    const at = pool.base + 4 * offset;
    const [keys, values] = [agent.readBytes(at, planeBytes), agent.readBytes(at + planeBytes, planeBytes)];
    expect(keys).not.toEqual(values);
    agent.writeBytes(at, values);
    agent.writeBytes(at + planeBytes, keys);
    const swapped = await content.verify(two);
    expect(swapped.firstWrong).toEqual({ layer: 10, role: 'kv', head: 6, token: 5 });
    expect(swapped.wrongBytes).toBeGreaterThan(planeBytes);
  });

  it('refuses a state whose units are not named, or of which there are several pages', async () => {
    const view: LayerView = {
      role: 'ssm_state',
      layout: 'SECTIONED',
      dtype: 'bfloat16',
      headsPerRank: 2,
      headDim: 8,
      layers: [{ layer: 0, pool: 0, offset: 0, bytes: 32 }],
    };
    const state = { kind: 'state', windowSize: null, tokensPerBlock: 4, slotCount: SLOT_COUNT, views: [view] } as const;
    const job: ContentJob = {
      ...jobOf(SHAPES['keys and values, head-major, bfloat16'] as readonly ViewShape[]),
      run: { begin: 0, slots: Int32Array.of(2) },
      firstUnits: { ssm_state: [4] },
    };
    const ofState: ContentJob = { ...job, table: { ...job.table, layerGroups: [state] } };
    expect(await content.fill(ofState)).toEqual({ bytesWritten: 32 });
    expect(await content.verify(ofState)).toEqual({ bytesChecked: 32, wrongBytes: 0, firstWrong: null });
    const earlier = await content.verify({ ...ofState, tokenEnd: 17 });
    expect(earlier).toMatchObject({ bytesChecked: 32, firstWrong: { role: 'ssm_state', head: 4, token: 16 } });
    const { firstUnits: _, ...unnamed } = ofState;
    for (const bad of [
      unnamed,
      { ...ofState, firstUnits: { ssm_state: [4, 4] } },
      { ...ofState, run: { begin: 1, slots: Int32Array.of(2) } },
      { ...ofState, run: { begin: 0, slots: Int32Array.of(2, 3) } },
      { ...ofState, tokenEnd: 100 },
    ]) {
      await expect(content.fill(bad)).rejects.toBeInstanceOf(ArgumentError);
      await expect(content.verify(bad)).rejects.toBeInstanceOf(ArgumentError);
    }
  });

  it('refuses jobs that do not fit their page table or their memory', async () => {
    const shapes = SHAPES['keys and values, head-major, bfloat16'] as readonly ViewShape[];
    const job = jobOf(shapes);
    const [poolSpec] = job.table.pools as [PageTable['pools'][number]];
    const group = job.table.layerGroups[0] as PageTable['layerGroups'][number];
    const withGroup = (fields: Partial<typeof group>): ContentJob => ({
      ...job,
      table: { ...job.table, layerGroups: [{ ...group, ...fields }] },
    });
    const withPool = (fields: Partial<typeof poolSpec>): ContentJob => ({
      ...job,
      table: { ...job.table, pools: [{ ...poolSpec, ...fields }] },
    });
    const withView = (fields: Partial<LayerView>): ContentJob =>
      withGroup({ views: group.views.map((view) => ({ ...view, ...fields })) });
    for (const bad of [
      { ...job, group: 1 },
      { ...job, tokenBegin: -1 },
      { ...job, tokenEnd: 0.5 },
      { ...job, run: { begin: -1, slots: Int32Array.of(0) } },
      { ...job, run: { begin: 1, slots: Int32Array.of(SLOT_COUNT) } },
      { ...job, tokenSeeds: job.tokenSeeds.subarray(0, 10) },
      { ...job, firstHead: -1 },
      withGroup({ tokensPerBlock: 8 }),
      withPool({ base: 4096 }),
      withPool({ slotCount: 10_000 }),
      withPool({ slotBytes: 100 }),
      withView({ dtype: 'float3' }),
      withView({ layout: 'SECTIONED' }),
      withView({ headDim: 0 }),
    ]) {
      await expect(content.fill(bad)).rejects.toBeInstanceOf(ArgumentError);
      await expect(content.verify(bad)).rejects.toBeInstanceOf(ArgumentError);
    }
  });

  it('ends before its agent unmaps the memory, and is refused afterwards', async () => {
    const shapes = SHAPES['keys and values, head-major, bfloat16'] as readonly ViewShape[];
    const other = await createAgent({ kind: 'host', name: 'short-lived' });
    const base = (await other.allocatePool({ sizeBytes: 1 << 16 })).base;
    const job = { ...jobOf(shapes), table: tableOf(base, shapes) };
    const running = Array.from({ length: 8 }, () => content.fill(job));
    const closed = other.close(5000);
    await expect(content.fill(job)).rejects.toBeInstanceOf(StateError);
    expect((await Promise.all(running)).every(({ bytesWritten }) => bytesWritten > 0)).toBe(true);
    expect(await closed).toEqual({ drained: true, outstanding: 0 });
    await expect(content.fill(job)).rejects.toBeInstanceOf(ArgumentError);
  });
});
