import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { expandPlan } from '../../../src/agent/expand-plan.js';
import { createAgent } from '../../../src/agent/native-agent.js';
import { createPageContent } from '../../../src/agent/native-page-content.js';
import type { ContentJob, PageContent } from '../../../src/agent/page-content.js';
import type { Pool, TransferAgent } from '../../../src/agent/transfer-agent.js';
import type { ModelPreset } from '../../../src/cli/bench/presets/model-preset.js';
import { ExpectedTransfer } from '../../../src/cli/bench/shape/expected-transfer.js';
import { type RankLayout, rankLayout } from '../../../src/cli/bench/shape/rank-layout.js';
import { ranksOf, type SideShape } from '../../../src/cli/bench/shape/side-shape.js';
import { PaddedContent } from '../../../src/cli/bench/ttft/padded-content.js';
import type { BlockRun } from '../../../src/geometry/block-run.js';
import {
  type LayerView,
  mapRanks,
  ownedBlocks,
  type PageTable,
  peersOf,
  planSlice,
  rebasePageTable,
} from '../../../src/mapping/index.js';

const PROMPT = 27;
const SLOTS = { blocks: 16, states: 3 };

const GQA: ModelPreset = {
  name: 'tiny',
  layerCount: 4,
  attentionHeads: 8,
  attentionHeadDim: 8,
  cache: { kind: 'attention', kvHeads: 4, headDim: 8 },
  dtype: 'bfloat16',
  dtypeBytes: 2,
  sliding: null,
  hybrid: null,
  parameterCount: 1,
  activeParameterCount: 1,
  sources: [],
};
const TWO_HEADS: ModelPreset = { ...GQA, cache: { kind: 'attention', kvHeads: 2, headDim: 8 } };
const MLA: ModelPreset = { ...GQA, cache: { kind: 'latent', latentDim: 12, ropeDim: 4, indexDim: 5 } };
const HYBRID: ModelPreset = {
  ...GQA,
  hybrid: {
    attentionLayers: [1],
    state: {
      layers: [0, 2],
      convWidth: 3,
      convSections: [
        { name: 'x', units: 8, channelsPerUnit: 2 },
        { name: 'B', units: 2, channelsPerUnit: 4 },
        { name: 'C', units: 2, channelsPerUnit: 4 },
      ],
      ssmHeads: 8,
      ssmHeadElements: 6,
    },
  },
};

function side(over: Partial<SideShape>): SideShape {
  const one: SideShape = {
    tp: 1,
    cp: 1,
    layersPerStage: [4],
    tokensPerBlock: 4,
    blockLayout: 'HND',
    poolLayout: 'per-layer',
  };
  return { ...one, ...over };
}

const CASES: Readonly<Record<string, readonly [ModelPreset, SideShape, SideShape]>> = {
  'TP2 -> TP4': [GQA, side({ tp: 2 }), side({ tp: 4 })],
  'TP4 -> TP2, NHD -> HND, one slot for all layers': [
    GQA,
    side({ tp: 4, blockLayout: 'NHD', poolLayout: 'per-block' }),
    side({ tp: 2 }),
  ],
  'blocks of 4 -> 8, PP 3 + 1 -> 1 + 2 + 1': [
    GQA,
    side({ layersPerStage: [3, 1] }),
    side({ layersPerStage: [1, 2, 1], tokensPerBlock: 8 }),
  ],
  'two KV heads on four ranks -> two': [TWO_HEADS, side({ tp: 4 }), side({ tp: 2, blockLayout: 'NHD' })],
  'CP3 -> one': [GQA, side({ cp: 3, tp: 2 }), side({ tokensPerBlock: 8 })],
  'one -> CP2': [GQA, side({ tokensPerBlock: 8 }), side({ cp: 2, tp: 2 })],
  'hybrid, TP2 -> TP4, states in two of three sections copied': [HYBRID, side({ tp: 2 }), side({ tp: 4 })],
  'hybrid, PP1 -> PP 1 + 3': [HYBRID, side({ tp: 2 }), side({ layersPerStage: [1, 3] })],
  'MLA with index keys, TP2 -> one': [MLA, side({ tp: 2 }), side({ tokensPerBlock: 16 })],
};

/** A rank with pages in memory. */
interface LiveRank extends RankLayout {
  readonly table: PageTable;
  readonly runs: readonly BlockRun[];
}

describe('content of pages that changed hands between differently split servers', () => {
  const tokens = Uint32Array.from({ length: PROMPT }, (_, i) => (i * 7919) % 32000);
  let agent: TransferAgent;
  let pool: Pool;
  let content: PageContent;

  beforeAll(async () => {
    agent = await createAgent({ kind: 'host', name: 'shapes' });
    pool = await agent.allocatePool({ sizeBytes: 1 << 21 });
    content = createPageContent();
  });
  afterAll(async () => {
    await agent.close(5000);
  });

  function place(preset: ModelPreset, shape: SideShape, from: number): { ranks: LiveRank[]; end: number } {
    let base = from;
    const ranks = ranksOf(shape).map((rankPlace): LiveRank => {
      const layout = rankLayout(preset, shape, rankPlace, SLOTS);
      const table = rebasePageTable(layout.layout.table, pool.base + base);
      base += layout.layout.sizeBytes;
      const { cpRank, cpSize } = rankPlace;
      const owned = ownedBlocks(0, Math.ceil(PROMPT / shape.tokensPerBlock), cpRank, cpSize);
      const runs = layout.stageGroups.map(({ kind }, group): BlockRun => {
        if (kind === 'state') return { begin: 0, slots: Int32Array.of(1 + (cpRank % 2)) };
        // Scattered, and elsewhere in every group.
        const slots = Int32Array.from({ length: owned.end }, (_, i) => (i * 5 + group + cpRank) % SLOTS.blocks);
        return { begin: cpRank, slots, ...(cpSize === 1 ? {} : { stride: cpSize }) };
      });
      return { ...layout, table, runs };
    });
    return { ranks, end: base };
  }

  function jobOf(rank: LiveRank, group: number, padded: PageContent, tokenEnd = PROMPT): ContentJob {
    const run = rank.runs[group] as BlockRun;
    const tokenSeeds = padded.chainTokenSeeds(tokens);
    return { table: rank.table, group, run, tokenBegin: 0, tokenEnd, tokenSeeds, ...rank.content };
  }

  async function fillAll(ranks: readonly LiveRank[], tokensPerBlock: number): Promise<void> {
    const padded = new PaddedContent(content, tokensPerBlock);
    await Promise.all(ranks.flatMap((rank) => rank.runs.map((_, group) => padded.fill(jobOf(rank, group, padded)))));
  }

  /** What each receiver finds: bytes and wrong bytes. */
  async function verifyAll(receivers: readonly LiveRank[], own: number, peer: number) {
    const padded = new PaddedContent(content, own);
    const smaller = Math.min(own, peer);
    const end = Math.ceil(PROMPT / smaller) * smaller;
    return Promise.all(
      receivers.map(async (rank) => {
        const results = await Promise.all(
          rank.stageGroups.map(({ kind }, group) =>
            padded.verify(jobOf(rank, group, padded, kind === 'state' ? PROMPT : end)),
          ),
        );
        return {
          bytes: results.reduce((sum, { bytesChecked }) => sum + bytesChecked, 0),
          wrong: results.reduce((sum, { wrongBytes }) => sum + wrongBytes, 0),
          first: results.find(({ firstWrong }) => firstWrong !== null)?.firstWrong ?? null,
        };
      }),
    );
  }

  /** Moves what the plans say, and returns the bytes of each writer. */
  function moveAll(writers: readonly LiveRank[], receivers: readonly LiveRank[]): number[] {
    const firstReceiver = receivers[0] as LiveRank;
    return writers.map((writer) => {
      let bytes = 0;
      for (const peer of peersOf(writer.place, firstReceiver.place, 0)) {
        const receiver = receivers[peer] as LiveRank;
        const mapping = mapRanks(
          { ...writer.place, pageTable: writer.table },
          { ...receiver.place, pageTable: receiver.table },
        );
        const plan = planSlice(mapping, writer.runs, receiver.runs);
        for (const run of expandPlan(writer.table, receiver.table, plan)) {
          agent.writeBytes(run.destination, agent.readBytes(run.source, run.bytes));
          bytes += run.bytes;
        }
      }
      return bytes;
    });
  }

  async function transfer([preset, context, generation]: readonly [ModelPreset, SideShape, SideShape]) {
    agent.writeBytes(pool.base, new Uint8Array(pool.sizeBytes).fill(0xee));
    const writers = place(preset, context, 0);
    const receivers = place(preset, generation, writers.end);
    expect(receivers.end).toBeLessThanOrEqual(pool.sizeBytes);
    await fillAll(writers.ranks, context.tokensPerBlock);
    const written = moveAll(writers.ranks, receivers.ranks);
    return {
      written,
      receivers: receivers.ranks,
      verify: () => verifyAll(receivers.ranks, generation.tokensPerBlock, context.tokensPerBlock),
    };
  }

  function swap(a: number, b: number, bytes: number): void {
    const [first, second] = [agent.readBytes(a, bytes), agent.readBytes(b, bytes)];
    agent.writeBytes(a, second);
    agent.writeBytes(b, first);
  }

  function addressOf(rank: LiveRank, role: string, layer: number, block: number): { at: number; view: LayerView } {
    for (const [group, { views }] of rank.table.layerGroups.entries()) {
      const view = views.find((one) => one.role === role && one.layers.some((entry) => entry.layer === layer));
      const entry = view?.layers.find((one) => one.layer === layer);
      const found = entry === undefined ? undefined : rank.table.pools[entry.pool];
      if (view === undefined || entry === undefined || found === undefined) continue;
      const slot = rank.runs[group]?.slots[block] as number;
      return { at: found.base + slot * found.slotStride + entry.offset, view };
    }
    throw new Error(`no ${role} of layer ${layer}`);
  }

  it.each(Object.entries(CASES))('%s: what the writers wrote is what the receivers expect', async (_, shapes) => {
    const { written, verify } = await transfer(shapes);
    const expected = new ExpectedTransfer(shapes[1], shapes[2], shapes[0]).of(PROMPT, 0);
    const found = await verify();
    expect(found.map(({ wrong, first }) => [wrong, first])).toEqual(found.map(() => [0, null]));
    expect(found.map(({ bytes }) => bytes)).toEqual(expected.generation);
    expect(written).toEqual(expected.context);
    expect(expected.generation.every((bytes) => bytes > 0)).toBe(true);
  });

  it('sees two swapped heads, and names the first', async () => {
    const { receivers, verify } = await transfer(CASES['TP4 -> TP2, NHD -> HND, one slot for all layers'] as never);
    const [, rank] = receivers as [LiveRank, LiveRank];
    const { at } = addressOf(rank, 'value', 2, 1);
    const headBytes = 4 * 8 * 2;
    swap(at, at + headBytes, headBytes);
    const [first, second] = await verify();
    expect(first).toMatchObject({ wrong: 0 });
    // The second of two ranks has the heads 2 and 3.
    expect(second?.first).toEqual({ layer: 2, role: 'value', head: 2, token: 4 });
    expect(second?.wrong).toBeGreaterThan(1.8 * headBytes);
    expect(second?.wrong).toBeLessThanOrEqual(2 * headBytes);
  });

  it('sees two swapped layers, keys taken for values, and two swapped tokens', async () => {
    const { receivers, verify } = await transfer(CASES['TP2 -> TP4'] as never);
    const rank = receivers[3] as LiveRank;
    const page = 4 * 8 * 2;
    for (const [a, b, bytes, place_] of [
      [addressOf(rank, 'key', 0, 2).at, addressOf(rank, 'key', 3, 2).at, page, { layer: 0, role: 'key', token: 8 }],
      [addressOf(rank, 'key', 1, 0).at, addressOf(rank, 'value', 1, 0).at, page, { layer: 1, role: 'key', token: 0 }],
      [
        addressOf(rank, 'key', 1, 0).at + 16,
        addressOf(rank, 'key', 1, 0).at + 32,
        16,
        { layer: 1, role: 'key', token: 1 },
      ],
    ] as const) {
      swap(a, b, bytes);
      const found = await verify();
      expect(found.slice(0, 3).map(({ wrong }) => wrong)).toEqual([0, 0, 0]);
      expect(found[3]?.first).toEqual({ ...place_, head: 3 });
      expect(found[3]?.wrong).toBeGreaterThan(1.7 * bytes);
      swap(a, b, bytes);
      expect((await verify())[3]?.wrong).toBe(0);
    }
  });

  it('sees a swapped state head, B taken for C, and a state that has not seen the last token', async () => {
    const shapes = CASES['hybrid, TP2 -> TP4, states in two of three sections copied'] as readonly [
      ModelPreset,
      SideShape,
      SideShape,
    ];
    const { receivers, verify } = await transfer(shapes);
    const rank = receivers[1] as LiveRank;
    const ssm = addressOf(rank, 'ssm_state', 2, 0).at;
    swap(ssm, ssm + 12, 12);
    expect((await verify())[1]).toMatchObject({ first: { layer: 2, role: 'ssm_state', head: 2, token: PROMPT - 1 } });
    swap(ssm, ssm + 12, 12);
    // x has two units of 12 bytes on this rank; B and C have one unit of 24 each, shared with the rank before.
    const sectionB = addressOf(rank, 'conv_state', 0, 0).at + 2 * 12;
    swap(sectionB, sectionB + 24, 24);
    expect((await verify())[1]).toMatchObject({ first: { layer: 0, role: 'conv_state section 1', head: 0 } });
    swap(sectionB, sectionB + 24, 24);
    expect((await verify())[1]).toMatchObject({ wrong: 0 });
    const padded = new PaddedContent(content, 4);
    const group = rank.stageGroups.findIndex(({ kind }) => kind === 'state');
    await padded.fill(jobOf(rank, group, padded, PROMPT - 1));
    const [, stale] = await verify();
    expect(stale?.wrong).toBeGreaterThan(0.9 * 2 * (2 * 12 + 2 * 24 + 2 * 12));
  });

  it('a rank that holds other heads than it says is wrong throughout', async () => {
    const { receivers, verify } = await transfer(CASES['TP2 -> TP4'] as never);
    (receivers[0] as { content: LiveRank['content'] }).content = { firstHead: 1 };
    const [first] = await verify();
    expect(first?.wrong).toBeGreaterThan(0.98 * (first?.bytes ?? 0));
  });
});
