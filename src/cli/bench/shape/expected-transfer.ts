import type { BlockRun } from '../../../geometry/block-run.js';
import { staleBlockEnd } from '../../../geometry/stale-block-end.js';
import { expectedBytes, ownedBlocks } from '../../../mapping/expected-bytes.js';
import type { PageTableGroup } from '../../../mapping/page-table.js';
import { mapPeer, type PeerMapping } from '../../../mapping/peer-mapping.js';
import { peersOf } from '../../../mapping/peers-of.js';
import { type RankPlace, sum } from '../../../mapping/rank-place.js';
import type { ModelPreset } from '../presets/model-preset.js';
import { type RankLayout, rankLayout, type SlotCounts } from './rank-layout.js';
import { ranksOf, type SideShape } from './side-shape.js';

/** Bytes of one request by flat rank. */
export interface RankTotals {
  /** What each context rank writes, to all receivers. */
  readonly context: readonly number[];
  /** What each generation rank gets, from all writers. */
  readonly generation: readonly number[];
}

/** How many slots there are has no part in what moves. */
const ANY_SLOTS: SlotCounts = { blocks: 1, states: 1 };

interface Receiver {
  readonly layout: RankLayout;
  readonly writers: readonly { readonly rank: number; readonly mapping: PeerMapping }[];
}

/**
 * Role: what each rank must write and get, from the shapes alone.
 * Why: servers that plan too little and verify too little agree with each other. The driver, which holds no page, counts by itself.
 */
export class ExpectedTransfer {
  readonly #writerCount: number;
  readonly #receivers: readonly Receiver[];
  readonly #known = new Map<string, RankTotals>();

  constructor(context: SideShape, generation: SideShape, preset: ModelPreset) {
    const layoutsOf = (shape: SideShape): readonly RankLayout[] =>
      ranksOf(shape).map((place) => rankLayout(preset, shape, place, ANY_SLOTS));
    const writers = layoutsOf(context);
    const [first] = writers;
    this.#writerCount = writers.length;
    this.#receivers = layoutsOf(generation).map((layout) => ({
      layout,
      writers: (first === undefined ? [] : peersOf(layout.place, first.place, 0)).map((rank) => ({
        rank,
        mapping: mappingOf(writers[rank] as RankLayout, layout),
      })),
    }));
  }

  /** @param cachedTokens that the generation server had before */
  of(promptTokens: number, cachedTokens: number): RankTotals {
    const key = `${promptTokens} ${cachedTokens}`;
    let totals = this.#known.get(key);
    if (totals === undefined) {
      totals = this.#count(promptTokens, cachedTokens);
      this.#known.set(key, totals);
    }
    return totals;
  }

  #count(promptTokens: number, cachedTokens: number): RankTotals {
    const context = new Array<number>(this.#writerCount).fill(0);
    const generation = this.#receivers.map(({ layout, writers }) => {
      const runs = layout.layout.table.layerGroups.map((group) =>
        wantedRun(group, promptTokens, cachedTokens, layout.place),
      );
      return sum(
        writers.map(({ rank, mapping }) => {
          const bytes = expectedBytes(mapping, runs, promptTokens);
          context[rank] = (context[rank] as number) + bytes;
          return bytes;
        }),
      );
    });
    return { context, generation };
  }
}

function mappingOf(writer: RankLayout, receiver: RankLayout): PeerMapping {
  const places = { source: writer.place, destination: receiver.place };
  return mapPeer(writer.layout.table, receiver.layout.table, places);
}

/** The blocks a receiver lacks and will look at; which slots they lie in does not matter, as long as each has its own. */
function wantedRun(
  { kind, windowSize, tokensPerBlock }: PageTableGroup,
  promptTokens: number,
  cachedTokens: number,
  { cpRank, cpSize }: RankPlace,
): BlockRun {
  if (kind === 'state') return { begin: 0, slots: new Int32Array(1) };
  const end = Math.ceil(promptTokens / tokensPerBlock);
  const stale = staleBlockEnd(promptTokens, windowSize, tokensPerBlock);
  const owned = ownedBlocks(Math.max(Math.floor(cachedTokens / tokensPerBlock), stale), end, cpRank, cpSize);
  const slots = Int32Array.from({ length: owned.end - owned.begin }, (_, slot) => slot);
  return { begin: cpRank + owned.begin * cpSize, slots, stride: cpSize };
}
