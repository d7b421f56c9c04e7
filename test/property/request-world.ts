/**
 * One prompt from a context server to a generation server: real cache managers, real bytes, every rank of a context parallel side. What
 * a page holds says which (layer, plane, position, text) it is, and what must be where is decided token by token.
 */
import {
  type CachePrompt,
  chainBlockHashes,
  GrowingCacheManager,
  type LayerGroup,
  type PagedCacheManager,
  ReservingCacheManager,
} from '../../src/cache/index.js';
import { createRequest } from '../../src/executor/create-request.js';
import type { LlmRequest } from '../../src/executor/request.js';
import { earlyPrefixSlice, runEnd } from '../../src/geometry/index.js';
import {
  buildPageTable,
  expectedBytes,
  mapRanks,
  type PageTable,
  planSlice,
  type RankPlaceInDp,
  SINGLE_RANK,
  type TransferPlan,
  validateRun,
} from '../../src/mapping/index.js';
import { destinationRuns } from '../../src/session/destination-runs.js';
import { requestSlice, type SliceBounds, sourceRuns } from '../../src/session/slice-source.js';

export interface RequestServer {
  readonly reserving: boolean;
  readonly tokensPerBlock: number;
  readonly cpSize: number;
  /** Tokens of an earlier prompt, and how many of its first ones are this prompt's. */
  readonly warm: { readonly promptLen: number; readonly shared: number } | null;
}

export interface RequestCase {
  readonly windowSize: number;
  readonly sinkTokens: number;
  readonly hybrid: boolean;
  readonly promptLen: number;
  /** Ends of the chunks but the last. */
  readonly cuts: readonly number[];
  readonly pipelined: boolean;
  readonly earlyPrefix: boolean;
  readonly context: RequestServer;
  readonly generation: RequestServer;
  /** What the generation server is told of the sender's block size: 1 = nothing. */
  readonly senderTokensPerBlock: number;
  /** Length of the prompt that comes back with this one as its beginning. */
  readonly secondTurn: number;
}

export interface RequestResult {
  readonly bytes: number;
  readonly contextHit: number;
  readonly generationHit: number;
  readonly secondHit: number;
  /** Slices of one group that cover sinks and window with a gap between. */
  readonly gaps: number;
}

const STATE_WORDS = 4;

/** One rank: its cache, its pages. It counts only the blocks it owns. */
class Rank {
  readonly place: RankPlaceInDp & { readonly pageTable: PageTable };
  readonly cache: PagedCacheManager;
  readonly words: Uint32Array;
  readonly #tokensPerBlock: number;
  #cuts = 0;

  constructor(world: RequestCase, server: RequestServer, cpRank: number, senderTokensPerBlock: number, seed: number) {
    const { tokensPerBlock, cpSize, reserving } = server;
    const { windowSize, sinkTokens, hybrid } = world;
    this.#tokensPerBlock = tokensPerBlock;
    const slotCount = 2 * Math.ceil(world.secondTurn / tokensPerBlock) + 4;
    const attention = { kind: 'attention', tokensPerBlock, slotCount } as const;
    const layerGroups: LayerGroup[] = [
      { ...attention, windowSize: null, layers: [0] },
      { ...attention, windowSize, sinkTokens, layers: [1] },
      ...(hybrid ? [{ kind: 'state', windowSize: null, tokensPerBlock: 1, layers: [2], slotCount: 3 } as const] : []),
    ];
    const Manager = reserving ? ReservingCacheManager : GrowingCacheManager;
    this.cache = new Manager({ tokensPerBlock, layerGroups, seed, senderTokensPerBlock, contextParallelSize: cpSize });
    const { table, sizeBytes } = buildPageTable({
      groups: layerGroups,
      kvHeads: 1,
      headDim: 1,
      dtype: 'float32',
      poolLayout: 'per-layer',
      blockLayout: 'HND',
      state: {
        conv: { dtype: 'float32', width: 1, sections: [{ channels: 2, unitChannels: 1 }] },
        ssm: { dtype: 'float32', heads: 1, headElements: 2 },
      },
    });
    this.words = new Uint32Array(sizeBytes / 4);
    this.place = { ...SINGLE_RANK, layersPerStage: [hybrid ? 3 : 2], cpSize, cpRank, pageTable: table };
  }

  owns(position: number): boolean {
    const { cpSize, cpRank } = this.place;
    return Math.floor(position / this.#tokensPerBlock) % cpSize === cpRank;
  }

  /** Its tokens among the first `tokens` of a prompt. */
  own(tokens: number): number {
    let count = 0;
    for (let position = 0; position < tokens; position++) if (this.owns(position)) count++;
    return count;
  }

  /** @param most tokens of a hit; a hit beyond is cut off. Default: all */
  prompt(tokens: Uint32Array, firstToken: number, most = Infinity): CachePrompt {
    const { cpSize, cpRank } = this.place;
    const blockHashes = chainBlockHashes(tokens, this.#tokensPerBlock).filter(
      (_, ordinal) => ordinal % cpSize === cpRank,
    );
    const cut = this.own(Math.min(most, tokens.length)) / this.#tokensPerBlock;
    // A block that nobody else can find, where the hit has to end.
    if (cut < blockHashes.length) blockHashes[cut] += ` cut ${this.#cuts++}`;
    return { promptLen: this.own(tokens.length), blockHashes, firstToken: this.own(firstToken) };
  }

  /** Words of a position in a group: K and V. Null where the page is not there. */
  wordsAt(id: number, group: number, position: number): [number, number] | null {
    const ordinal = Math.floor(position / this.#tokensPerBlock / this.place.cpSize);
    const { slots } = this.cache.getBlockIdsRange(id, group, ordinal, ordinal + 1);
    const [slot] = slots;
    if (slot === undefined) return null;
    return this.place.pageTable.layerGroups[group]?.views.map(({ layers: [entry] }) => {
      const pool = this.place.pageTable.pools[entry?.pool ?? -1];
      if (pool === undefined || entry === undefined) throw new Error('no pool');
      return (pool.base + slot * pool.slotStride + entry.offset) / 4 + (position % this.#tokensPerBlock);
    }) as [number, number];
  }

  stateWords(id: number): number[] {
    const [slot = -1] = this.cache.getBlockIdsRange(id, 2, 0, 1).slots;
    return (this.place.pageTable.layerGroups[2]?.views ?? []).flatMap(({ layers: [entry] }) => {
      const pool = this.place.pageTable.pools[entry?.pool ?? -1];
      if (pool === undefined || entry === undefined) throw new Error('no pool');
      const first = (pool.base + slot * pool.slotStride + entry.offset) / 4;
      return Array.from({ length: entry.bytes / 4 }, (_, index) => first + index);
    });
  }

  compute(id: number, tokens: Uint32Array, begin: number, end: number): void {
    for (let position = begin; position < end; position++) {
      if (!this.owns(position)) continue;
      for (const group of [0, 1])
        this.wordsAt(id, group, position)?.forEach((at, plane) => {
          this.words[at] = wordOf(group, plane, position, tokens);
        });
    }
  }
}

function wordOf(group: number, plane: number, position: number, tokens: Uint32Array): number {
  return (group << 28) | (plane << 27) | ((tokens[position] as number) << 16) | (position + 1);
}

const stateWord = (index: number): number => 0x7000_0000 | index;

/** Tokens of a text of its own behind `shared` common ones. */
function textOf(length: number, shared: number, text: number): Uint32Array {
  return Uint32Array.from({ length }, (_, position) => (position < shared ? 1 : text));
}

function fail(what: string): never {
  throw new Error(what);
}

/** The longest hit that no rank has to cut off, and none finds more than. */
function agreedHit(ranks: readonly Rank[], tokens: Uint32Array, server: RequestServer, firstToken: number): number {
  const fits = (rank: Rank, end: number): boolean => {
    if (rank.own(tokens.length) === 0) return true;
    const found = rank.cache.locatePrefix(rank.prompt(tokens, firstToken)).prepopulatedLen;
    return (
      found >= rank.own(end) &&
      rank.cache.locatePrefix(rank.prompt(tokens, firstToken, end)).prepopulatedLen === rank.own(end)
    );
  };
  let agreed = 0;
  for (let end = 0; end < tokens.length; end += server.tokensPerBlock)
    if (ranks.every((rank) => fits(rank, end))) agreed = end;
  return agreed;
}

function admit(ranks: readonly Rank[], id: number, tokens: Uint32Array, server: RequestServer, firstToken = 0): number {
  const hit = agreedHit(ranks, tokens, server, firstToken);
  for (const rank of ranks) {
    if (rank.own(tokens.length) === 0) continue;
    const whole = rank.prompt(tokens, firstToken);
    const isCut = rank.cache.locatePrefix(whole).prepopulatedLen > rank.own(hit);
    const { prepopulatedLen } = rank.cache.addRequest(id, isCut ? rank.prompt(tokens, firstToken, hit) : whole);
    if (prepopulatedLen !== rank.own(hit)) fail(`a hit of ${prepopulatedLen} tokens, not ${rank.own(hit)}`);
  }
  return hit;
}

function serveLocally(ranks: readonly Rank[], id: number, tokens: Uint32Array, server: RequestServer): void {
  const hit = admit(ranks, id, tokens, server);
  for (const rank of ranks) {
    const own = rank.own(tokens.length);
    if (own === 0) continue;
    if (!rank.cache.ensureCapacity(id, own)) fail('the pool is too small');
    rank.compute(id, tokens, hit, tokens.length);
    rank.cache.markComputed(id, own);
    rank.cache.freeRequest(id);
  }
}

function requestOf(world: RequestCase, tokens: Uint32Array, prepopulatedLen: number): LlmRequest {
  const { pipelined, earlyPrefix } = world;
  const request = createRequest({
    id: 1,
    promptTokens: tokens,
    maxTokens: 1,
    transferPolicy: { pipelined, earlyPrefix },
  });
  request.prepopulatedLen = prepopulatedLen;
  return request;
}

/** Naive: word by word, refusing to write a word twice. */
function execute(plan: TransferPlan, from: Rank, to: Rank, written: Set<number>): number {
  let bytes = 0;
  const at = (table: PageTable, pool: number, slot: number, offset: number): number => {
    const { base, slotStride } = table.pools[pool] ?? fail('no pool');
    return (base + slot * slotStride + offset) / 4;
  };
  for (const { fragments, slotPairs } of plan.groups) {
    for (const piece of fragments) {
      for (let i = 0; i < slotPairs.length; i += 2) {
        for (let n = 0; n < piece.count; n++) {
          const source = at(
            from.place.pageTable,
            piece.srcPool,
            slotPairs[i] as number,
            piece.srcOffset + n * piece.srcStride,
          );
          const target = at(
            to.place.pageTable,
            piece.dstPool,
            slotPairs[i + 1] as number,
            piece.dstOffset + n * piece.dstStride,
          );
          for (let word = 0; word < piece.bytes / 4; word++) {
            if (written.has(target + word)) fail(`word ${target + word} is written twice`);
            written.add(target + word);
            to.words[target + word] = from.words[source + word] as number;
          }
          bytes += piece.bytes;
        }
      }
    }
  }
  return bytes;
}

export function runRequest(world: RequestCase, seed: number): RequestResult {
  const { promptLen, windowSize, sinkTokens, hybrid, context, generation } = world;
  const ranksOf = (server: RequestServer, senderTokensPerBlock: number, salt: number): Rank[] =>
    Array.from(
      { length: server.cpSize },
      (_, rank) => new Rank(world, server, rank, senderTokensPerBlock, seed * 31 + salt + rank),
    );
  const [senders, receivers] = [ranksOf(context, 1, 0), ranksOf(generation, world.senderTokensPerBlock, 16)];
  for (const [ranks, server, text] of [
    [senders, context, 2],
    [receivers, generation, 3],
  ] as const) {
    if (server.warm !== null) serveLocally(ranks, 9, textOf(server.warm.promptLen, server.warm.shared, text), server);
  }

  const tokens = textOf(promptLen, promptLen, 0);
  const asked = requestOf(world, tokens, admit(receivers, 1, tokens, generation, promptLen));
  const wanted = receivers.map((rank) => {
    const own = rank.own(promptLen);
    if (own > 0 && !rank.cache.ensureCapacity(1, own, own)) fail('the pool is too small');
    // A rank without blocks still has the state; its engine would have to place it, so hybrids are not run there.
    const runs = destinationRuns(rank.cache, asked, rank.place);
    rank.place.pageTable.layerGroups.forEach((group, index) => {
      const run = runs[index] ?? fail('no run');
      validateRun(run, group, Math.ceil(promptLen / group.tokensPerBlock), `run ${index}`, rank.place);
    });
    // On the wire a run has no stride.
    return runs.map(({ begin, slots }) => ({ begin, slots }));
  });
  const before = receivers.map((rank) => rank.words.slice());
  const written = receivers.map(() => new Set<number>());
  const mappings = senders.map((from) => receivers.map((to) => mapRanks(from.place, to.place)));
  const sent = senders.map(() => receivers.map(() => 0));
  let [bytes, gaps] = [0, 0];

  const send = (request: LlmRequest, bounds: SliceBounds): void => {
    senders.forEach((from, i) => {
      const runs = sourceRuns(from.cache, request, bounds, from.place);
      runs.forEach((run) => {
        const blocks = bounds.endBlock - bounds.beginBlock;
        if (run !== null && run.slots.length > Math.max(1, blocks)) fail('a run longer than its slice');
        if (run?.slots.includes(-1)) gaps++;
        if (run !== null && runEnd(run) > Math.max(1, bounds.endBlock)) fail('a run past its slice');
      });
      receivers.forEach((to, j) => {
        const plan = planSlice(mappings[i]?.[j] ?? fail('no mapping'), runs, wanted[j] ?? []);
        const moved = execute(plan, from, to, written[j] as Set<number>);
        if (moved !== plan.stats.bytes) fail(`moved ${moved} bytes, planned ${plan.stats.bytes}`);
        (sent[i] as number[])[j] = (sent[i]?.[j] ?? 0) + moved;
        bytes += moved;
      });
    });
  };

  const request = requestOf(world, tokens, admit(senders, 1, tokens, context));
  request.chunkStart = request.prepopulatedLen;
  request.chunkEnd = request.prepopulatedLen;
  const early = earlyPrefixSlice({
    prepopulatedLen: request.prepopulatedLen,
    tokensPerBlock: context.tokensPerBlock,
    isFirstChunk: true,
    cancelled: false,
    pipelined: world.pipelined && world.earlyPrefix,
  });
  if (early !== null) send(request, { ...early, isLast: false });
  const cuts = world.cuts.filter((cut) => cut > request.prepopulatedLen && cut < promptLen);
  let lasts = 0;
  for (const chunkEnd of [...cuts, promptLen]) {
    request.chunkStart = request.chunkEnd;
    request.chunkEnd = chunkEnd;
    for (const rank of senders) {
      if (rank.own(promptLen) === 0) continue;
      if (!rank.cache.ensureCapacity(1, rank.own(chunkEnd))) fail('the pool is too small');
      rank.compute(1, tokens, request.chunkStart, chunkEnd);
      if (hybrid && chunkEnd === promptLen)
        rank.stateWords(1).forEach((at, index) => {
          rank.words[at] = stateWord(index);
        });
    }
    const slice = requestSlice(request, context.tokensPerBlock, early !== null);
    if (slice !== null) send(request, slice);
    if (slice?.isLast) lasts++;
    for (const rank of senders) if (rank.own(promptLen) > 0) rank.cache.markComputed(1, rank.own(chunkEnd));
  }
  if (lasts !== 1) fail(`${lasts} last slices`);
  mappings.forEach((row, i) => {
    row.forEach((mapping, j) => {
      const promised = expectedBytes(mapping, wanted[j] ?? [], promptLen);
      if (promised !== sent[i]?.[j]) fail(`rank ${i} sent ${sent[i]?.[j]} bytes to ${j}, which expects ${promised}`);
    });
  });

  const isSeen = (position: number, next: number): boolean => position < sinkTokens || next - position < windowSize;
  const check = (id: number, end: number, next: number, what: string): void => {
    for (let position = 0; position < end; position++) {
      for (const group of [0, 1]) {
        if (group === 1 && !isSeen(position, next)) continue;
        const rank = receivers.find((of) => of.owns(position)) ?? fail('nobody owns it');
        const places = rank.wordsAt(id, group, position) ?? fail(`${what}: no page for position ${position}`);
        places.forEach((at, plane) => {
          const [found, right] = [rank.words[at], wordOf(group, plane, position, tokens)];
          if (found !== right) fail(`${what}: group ${group} position ${position}: ${found}, not ${right}`);
        });
      }
    }
  };
  check(1, promptLen, promptLen, 'received');
  receivers.forEach((rank, j) => {
    const allowed = new Set<number>();
    for (let position = Math.floor(asked.prepopulatedLen); position < promptLen + 256; position++) {
      if (
        !rank.owns(position) ||
        rank.own(position + 1) > Math.ceil(rank.own(promptLen) / generation.tokensPerBlock) * generation.tokensPerBlock
      )
        continue;
      for (const group of [0, 1]) for (const at of rank.wordsAt(1, group, position) ?? []) allowed.add(at);
    }
    if (hybrid) {
      const state = rank.stateWords(1);
      if (state.length !== STATE_WORDS) fail(`${state.length} words of state`);
      state.forEach((at, index) => {
        allowed.add(at);
        if (rank.words[at] !== stateWord(index)) fail(`state word ${index}: ${rank.words[at]}`);
      });
    }
    rank.words.forEach((word, at) => {
      if (!allowed.has(at) && (word !== before[j]?.[at] || written[j]?.has(at)))
        fail(`word ${at} is not the request's`);
    });
  });

  // The conversation goes on: whatever the generation server finds of the prompt must be what it computed once.
  for (const rank of receivers) {
    if (rank.own(promptLen) === 0) continue;
    rank.cache.markComputed(1, rank.own(promptLen));
    rank.cache.freeRequest(1);
  }
  const next = textOf(world.secondTurn, promptLen, 4).map((text, position) => (position < promptLen ? 1 : text));
  const secondHit = admit(receivers, 2, next, generation);
  check(2, Math.min(secondHit, promptLen), secondHit, 'reused');
  return { bytes, contextHit: request.prepopulatedLen, generationHit: asked.prepopulatedLen, secondHit, gaps };
}
