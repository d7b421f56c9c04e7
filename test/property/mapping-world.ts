/**
 * Servers of several ranks with real bytes behind their page tables. Content is 32-bit words that say which (role, layer, head,
 * token, element) they are, so that a swapped head, layer or block is seen. Written without the mapping code: where a word lies is
 * computed from the layout's definition.
 */
import { type BlockRun, HOLE, prefillSlice, sourceRange, staleBlockEnd } from '../../src/geometry/index.js';
import {
  buildPageTable,
  expectedBytes,
  expectedReceivers,
  expectedWriters,
  type Fragment,
  flatRank,
  type GroupSpec,
  kvHeadShard,
  type LayerView,
  mapRanks,
  type PageTable,
  type PageTableGroup,
  planSlice,
  type RankPlaceInDp,
  type TransferPlan,
} from '../../src/mapping/index.js';

export interface WorldModel {
  readonly attention: { readonly kvHeads: number } | 'mla';
  /** Kind and window of each layer. */
  readonly layers: readonly ('full' | 'window' | 'state')[];
  readonly windowTokens: number;
  readonly headDim: number;
  readonly scales?: boolean;
  readonly indexKeys?: boolean;
}

export interface WorldServer {
  readonly tpSize: number;
  readonly layersPerStage: readonly number[];
  readonly cpSize?: number;
  readonly dpSize?: number;
  readonly dpRank?: number;
  readonly attentionDp?: boolean;
  readonly tokensPerBlock: number;
  readonly blockLayout: 'HND' | 'NHD';
  readonly poolLayout: 'per-layer' | 'per-block';
}

export interface WorldRank extends RankPlaceInDp {
  readonly pageTable: PageTable;
  readonly sizeBytes: number;
  /** Groups of the model that this rank's page table holds, in its order. */
  readonly kinds: readonly WorldModel['layers'][number][];
}

/** State of the hybrid models: a section whose units outnumber the ranks, two that ranks share. */
const CONV_WIDTH = 2;
const CONV_SECTIONS = [
  { units: 8, channels: 2 },
  { units: 2, channels: 1 },
  { units: 2, channels: 1 },
];
const SSM = { heads: 8, headElements: 3 };
const UNTOUCHED = 0xeeeeeeee;

/** The ranks of one DP group (all ranks without attention DP), by flat rank. */
export function buildServer(model: WorldModel, server: WorldServer, slots: (kind: string) => number): WorldRank[] {
  const { tpSize, layersPerStage, cpSize = 1, dpSize = 1, dpRank = 0, attentionDp = false } = server;
  const perGroup = attentionDp ? tpSize / dpSize : tpSize;
  const ranks: WorldRank[] = [];
  let firstLayer = 0;
  layersPerStage.forEach((count, ppRank) => {
    const layers = Array.from({ length: count }, (_, index) => firstLayer + index);
    firstLayer += count;
    // A stage without layers has no cache and no page table.
    if (count === 0) return;
    for (let tp = 0; tp < perGroup; tp++) {
      for (let cpRank = 0; cpRank < cpSize; cpRank++) {
        const kinds = (['full', 'window', 'state'] as const).filter((kind) =>
          layers.some((layer) => model.layers[layer] === kind),
        );
        const groups = kinds.map(
          (kind): GroupSpec => ({
            kind: kind === 'state' ? 'state' : model.attention === 'mla' ? 'latent' : 'attention',
            windowSize: kind === 'window' ? model.windowTokens : null,
            tokensPerBlock: kind === 'state' ? 1 : server.tokensPerBlock,
            layers: layers.filter((layer) => model.layers[layer] === kind),
            slotCount: slots(kind),
          }),
        );
        const { table, sizeBytes } = buildPageTable({
          groups,
          kvHeads: model.attention === 'mla' ? 1 : kvHeadShard(model.attention.kvHeads, perGroup, tp).headsPerRank,
          headDim: model.headDim,
          latentDim: model.headDim,
          ...(model.indexKeys ? { indexDim: 1 } : {}),
          ...(model.scales ? { scale: { dtype: 'float32', elementsPerScale: model.headDim } } : {}),
          dtype: 'float32',
          poolLayout: server.poolLayout,
          blockLayout: server.blockLayout,
          state: {
            conv: {
              dtype: 'float32',
              width: CONV_WIDTH,
              sections: CONV_SECTIONS.map(({ units, channels }) => ({
                channels: kvHeadShard(units, perGroup, tp).headsPerRank * channels,
                unitChannels: channels,
              })),
            },
            ssm: { dtype: 'float32', heads: kvHeadShard(SSM.heads, perGroup, tp).headsPerRank, headElements: 3 },
          },
        });
        ranks.push({
          tpSize,
          tpRank: (attentionDp ? dpRank * perGroup : 0) + tp,
          ppSize: layersPerStage.length,
          ppRank,
          cpSize,
          cpRank,
          dpSize,
          dpRank,
          attentionDp,
          layersPerStage,
          pageTable: table,
          sizeBytes,
          kinds,
        });
      }
    }
  });
  return ranks;
}

/** Calls `visit(wordIndex, word)` for every word of one slot, the tokens of an addressed block counted from `firstToken`. */
function visitSlot(
  rank: WorldRank,
  group: PageTableGroup,
  slot: number,
  firstToken: number,
  visit: (index: number, word: number, token: number) => void,
): void {
  const tpSize = rank.attentionDp ? rank.tpSize / rank.dpSize : rank.tpSize;
  const tpRank = rank.tpRank % tpSize;
  for (const view of group.views) {
    for (const { layer, pool: index, offset, bytes } of view.layers) {
      const pool = rank.pageTable.pools[index];
      if (pool === undefined) throw new Error('an entry names no pool');
      let at = (pool.base + slot * pool.slotStride + offset) / 4;
      const end = at + bytes / 4;
      const role = roleNumber(view);
      const put = (plane: number, head: number, token: number, element: number): void => {
        visit(at++, (role << 29) | (layer << 25) | (plane << 23) | (head << 15) | (token << 4) | element, token);
      };
      if (view.role === 'conv_state') {
        CONV_SECTIONS.forEach(({ units, channels }, section) => {
          const { firstHead, headsPerRank } = kvHeadShard(units, tpSize, tpRank);
          for (let channel = firstHead * channels; channel < (firstHead + headsPerRank) * channels; channel++)
            for (let column = 0; column < CONV_WIDTH; column++) put(section, channel, 0, column);
        });
      } else if (view.role === 'ssm_state') {
        const { firstHead, headsPerRank } = kvHeadShard(SSM.heads, tpSize, tpRank);
        for (let head = firstHead; head < firstHead + headsPerRank; head++)
          for (let element = 0; element < SSM.headElements; element++) put(0, head, 0, element);
      } else {
        const tokens = group.tokensPerBlock;
        const heads = view.headsPerRank;
        const firstHead = view.layout === 'REPLICATED' ? 0 : firstHeadOf(view, rank, tpSize, tpRank);
        const planes = view.role === 'scale' ? 2 : 1;
        for (let plane = 0; plane < planes; plane++) {
          const [outer, inner] = view.layout === 'HND' ? [heads, tokens] : [tokens, heads];
          for (let i = 0; i < outer; i++) {
            for (let j = 0; j < inner; j++) {
              const [head, token] = view.layout === 'HND' ? [i, j] : [j, i];
              for (let element = 0; element < view.headDim; element++)
                put(plane, firstHead + head, firstToken + token, element);
            }
          }
        }
      }
      if (at !== end) throw new Error(`${view.role} of layer ${layer}: the entry has another size than its content`);
    }
  }
}

/** Heads of the whole model, learnt from the first rank: the model's number is not in a page table. */
const modelHeads = new WeakMap<PageTable, number>();

function firstHeadOf(view: LayerView, rank: WorldRank, tpSize: number, tpRank: number): number {
  const kvHeads = modelHeads.get(rank.pageTable) ?? view.headsPerRank * tpSize;
  return kvHeadShard(kvHeads, tpSize, tpRank).firstHead;
}

function roleNumber(view: LayerView): number {
  const roles = ['key', 'value', 'latent', 'index_k', 'scale', 'conv_state', 'ssm_state'];
  const index = roles.indexOf(view.role);
  if (index < 0) throw new Error(`no content for role ${view.role}`);
  return index;
}

/** One request on one rank: its run of each group, in ordinals of the prompt. */
type Runs = readonly (BlockRun | null)[];

export interface WorldCase {
  readonly model: WorldModel;
  readonly context: WorldServer;
  readonly generation: WorldServer;
  readonly promptLen: number;
  /** Ends of the prefill chunks but the last. */
  readonly chunkEnds: readonly number[];
  /** Tokens that the receiver has already. */
  readonly cachedTokens: number;
}

export interface WorldResult {
  readonly writers: number;
  readonly bytes: number;
  readonly plans: number;
}

/** Sends one prompt from every context rank to every generation rank, slice by slice, and checks every byte of every receiver. */
export function runWorld(world: WorldCase, random: () => number): WorldResult {
  const { model, context, generation, promptLen } = world;
  const slotsFor = (server: WorldServer) => (kind: string) =>
    kind === 'state' ? 3 : Math.ceil(promptLen / server.tokensPerBlock) + 2;
  const sources = buildServer(model, context, slotsFor(context));
  const destinations = buildServer(model, generation, slotsFor(generation));
  const kvHeads = model.attention === 'mla' ? 1 : model.attention.kvHeads;
  for (const rank of [...sources, ...destinations]) modelHeads.set(rank.pageTable, kvHeads);

  const sourceSlots = sources.map((rank) => rank.pageTable.layerGroups.map((group) => shuffled(group, random)));
  const sourceMemory = sources.map((rank, index) => filled(rank, promptLen, sourceSlots[index] ?? []));
  const result = { writers: 0, bytes: 0, plans: 0 };
  for (const destination of destinations) {
    const runs = destination.pageTable.layerGroups.map((group) =>
      ownedPart(destination, group, wantedRange(group, world), shuffled(group, random)),
    );
    const memory = new Uint8Array(destination.sizeBytes).fill(0xee);
    const writes = new Uint8Array(destination.sizeBytes / 4);
    const expected = expectedWriters(destination, sources[0] as WorldRank, context.dpRank ?? 0);
    let received = 0;
    sources.forEach((source, index) => {
      const isWriter = expected.includes(flatRank(source));
      const receivers = expectedReceivers(source, destination, generation.dpRank ?? 0);
      if (receivers.includes(flatRank(destination)) !== isWriter) throw new Error('the two sides expect differently');
      if (!isWriter) return;
      const mapping = mapRanks(source, destination);
      let sent = 0;
      for (const sliceRuns of slicesOf(source, world, sourceSlots[index] ?? [])) {
        const plan = planSlice(mapping, sliceRuns, onWire(runs));
        const moved = execute(plan, source.pageTable, destination.pageTable, sourceMemory[index], memory, writes);
        if (moved !== plan.stats.bytes) throw new Error(`moved ${moved} bytes, the plan says ${plan.stats.bytes}`);
        sent += moved;
        result.plans++;
      }
      const promised = expectedBytes(mapping, onWire(runs), promptLen);
      if (sent !== promised)
        throw new Error(`rank ${flatRank(source)} sent ${sent} bytes, the receiver expects ${promised}`);
      received += sent;
    });
    result.writers += expected.length;
    result.bytes += received;
    check(destination, world, runs, new Uint32Array(memory.buffer), writes, received);
  }
  return result;
}

/** A run as it is on the wire: its stride is known from the rank. */
function onWire(runs: Runs): Runs {
  return runs.map((run) => (run === null ? null : { begin: run.begin, slots: run.slots }));
}

function shuffled(group: PageTableGroup, random: () => number): Int32Array {
  const slots = Int32Array.from({ length: group.slotCount }, (_, slot) => slot);
  for (let i = slots.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [slots[i], slots[j]] = [slots[j] as number, slots[i] as number];
  }
  return slots;
}

function wantedRange(group: PageTableGroup, { promptLen, cachedTokens }: WorldCase): [number, number] {
  if (group.kind === 'state') return [0, 1];
  const blocks = Math.ceil(promptLen / group.tokensPerBlock);
  const stale = staleBlockEnd(promptLen, group.windowSize, group.tokensPerBlock);
  return [Math.min(blocks, Math.max(stale, Math.floor(cachedTokens / group.tokensPerBlock))), blocks];
}

/** The ordinals of `[begin, end)` that a rank owns; the slot of an ordinal is `slots[ordinal]`. */
function ownedPart(
  rank: WorldRank,
  group: PageTableGroup,
  [begin, end]: [number, number],
  slots: Int32Array,
): BlockRun {
  if (group.kind === 'state' || rank.cpSize === 1) return { begin, slots: slots.slice(begin, end) };
  const owned: number[] = [];
  for (let ordinal = begin; ordinal < end; ordinal++) if (ordinal % rank.cpSize === rank.cpRank) owned.push(ordinal);
  const stride = rank.cpSize;
  return { begin: owned[0] ?? end, slots: Int32Array.from(owned, (ordinal) => slots[ordinal] as number), stride };
}

function* slicesOf(rank: WorldRank, world: WorldCase, slots: readonly Int32Array[]): Generator<Runs> {
  const { promptLen, chunkEnds, context } = world;
  let chunkStart = 0;
  for (const chunkEnd of [...chunkEnds, promptLen]) {
    const slice = prefillSlice({
      chunkStart,
      chunkEnd,
      promptLen,
      prepopulatedLen: 0,
      remaining: promptLen - chunkEnd,
      tokensPerBlock: context.tokensPerBlock,
      prefixSent: false,
    });
    chunkStart = chunkEnd;
    if (slice === null) continue;
    yield rank.pageTable.layerGroups.map((group, index) => {
      const kind = group.kind === 'aux' ? 'attention' : group.kind;
      const range = sourceRange(slice, { kind, windowSize: group.windowSize }, promptLen, context.tokensPerBlock);
      if (range === null) return null;
      return ownedPart(rank, group, [range.begin, range.end], slots[index] ?? new Int32Array(0));
    });
  }
}

function filled(rank: WorldRank, promptLen: number, slots: readonly Int32Array[]): Uint8Array {
  const words = new Uint32Array(rank.sizeBytes / 4).fill(0xdddddddd);
  rank.pageTable.layerGroups.forEach((group, index) => {
    const blocks = group.kind === 'state' ? 1 : Math.ceil(promptLen / group.tokensPerBlock);
    for (let ordinal = 0; ordinal < blocks; ordinal++) {
      // A context parallel rank has nothing at the ordinals of the others.
      if (group.kind !== 'state' && ordinal % rank.cpSize !== rank.cpRank) continue;
      visitSlot(rank, group, slots[index]?.[ordinal] ?? HOLE, ordinal * group.tokensPerBlock, (at, word) => {
        words[at] = word;
      });
    }
  });
  return new Uint8Array(words.buffer);
}

/** Naive: piece by piece. */
function execute(
  plan: TransferPlan,
  from: PageTable,
  to: PageTable,
  source: Uint8Array | undefined,
  destination: Uint8Array,
  writes: Uint8Array,
): number {
  if (source === undefined) throw new Error('a rank has no memory');
  let moved = 0;
  for (const { fragments, slotPairs } of plan.groups) {
    for (const fragment of fragments) {
      for (let i = 0; i < slotPairs.length; i += 2) {
        for (let piece = 0; piece < fragment.count; piece++) {
          const read = addressOf(from, fragment.srcPool, slotPairs[i] as number) + pieceOffset(fragment, piece, 'src');
          const write =
            addressOf(to, fragment.dstPool, slotPairs[i + 1] as number) + pieceOffset(fragment, piece, 'dst');
          destination.set(source.subarray(read, read + fragment.bytes), write);
          for (let word = write / 4; word < (write + fragment.bytes) / 4; word++)
            writes[word] = (writes[word] ?? 0) + 1;
          moved += fragment.bytes;
        }
      }
    }
  }
  return moved;
}

function addressOf(table: PageTable, index: number, slot: number): number {
  const pool = table.pools[index];
  if (pool === undefined) throw new Error('a fragment names no pool');
  return pool.base + slot * pool.slotStride;
}

function pieceOffset(fragment: Fragment, piece: number, side: 'src' | 'dst'): number {
  return side === 'src'
    ? fragment.srcOffset + piece * fragment.srcStride
    : fragment.dstOffset + piece * fragment.dstStride;
}

function check(
  rank: WorldRank,
  world: WorldCase,
  runs: Runs,
  words: Uint32Array,
  writes: Uint8Array,
  received: number,
): void {
  const wanted = new Uint32Array(words.length).fill(UNTOUCHED);
  let wantedWords = 0;
  const sourceBlock = world.context.tokensPerBlock;
  rank.pageTable.layerGroups.forEach((group, index) => {
    const run = runs[index];
    const isState = group.kind === 'state';
    // What the sender has: blocks of its own size, none that left its window.
    const firstToken = isState ? 0 : staleBlockEnd(world.promptLen, group.windowSize, sourceBlock) * sourceBlock;
    const endToken = isState ? 1 : Math.ceil(world.promptLen / sourceBlock) * sourceBlock;
    run?.slots.forEach((slot, i) => {
      const ordinal = run.begin + i * (run.stride ?? 1);
      visitSlot(rank, group, slot, ordinal * group.tokensPerBlock, (at, word, token) => {
        if (token < firstToken || token >= endToken) return;
        wanted[at] = word;
        wantedWords++;
      });
    });
  });
  const where = (at: number): string =>
    `receiver ${flatRank(rank)}, word ${at}: ${words[at]?.toString(16)} instead of ${wanted[at]?.toString(16)}, written ${writes[at]} times`;
  for (let at = 0; at < words.length; at++) {
    if (words[at] !== wanted[at] || (writes[at] as number) !== (wanted[at] === UNTOUCHED ? 0 : 1))
      throw new Error(where(at));
  }
  if (received !== wantedWords * 4) throw new Error(`received ${received} bytes, wanted ${wantedWords * 4}`);
}
