import { blocksFilledBy } from '../geometry/bounds.js';
import type { BlockTable } from './block-table.js';
import { FetchAhead } from './fetch-ahead.js';
import { type FoundBlocks, hostSlotOf, isOffloaded, matchBegin } from './found-blocks.js';
import type { BlockPlace, GroupPages } from './group-pages.js';
import type { CachePrompt } from './kv-cache-manager.js';
import type { PartialIndex, PartialMatch } from './partial-index.js';
import { PrefixMatcher } from './prefix-match.js';
import type { SlotsAction } from './slot-list.js';

/** What of a prompt is cached, and where. */
export interface PrefixLocation {
  /** Tokens that a request with this prompt would find if it were admitted now. */
  readonly prepopulatedLen: number;
  /** Per layer group: the place of each full block of the prompt. */
  readonly places: readonly (readonly BlockPlace[])[];
}

/** A hit that belongs to a request. */
export interface TakenPrefix {
  readonly prepopulatedLen: number;
  /** Whole blocks of the hit. */
  readonly blocks: number;
  /** One per layer group. */
  readonly tables: readonly BlockTable[];
  /** Batch of moves that completes the content; 0 = it is there. */
  readonly contentAfter: number;
}

/** Held content: on the device by one more owner, else in host memory. */
type Source = { readonly slot: number } | { readonly hostSlot: number };

/**
 * Role: finds what of a prompt is cached and gives it to a request.
 * Ownership: whole blocks on the device are shared. Blocks on the host are fetched into new slots, which are then shared like any other.
 *   A part of a block is copied into a slot of the request's own, because it will write the rest of that block.
 * Ordering: everything a hit needs is held before the first slot is allocated for it, so that it cannot evict its own content.
 */
export class PrefixReuse {
  /** Recurrent state is not kept per block: what was computed before cannot be resumed from, so nothing of it is taken. */
  readonly isPossible: boolean;
  readonly #groups: readonly GroupPages[];
  readonly #matcher: PrefixMatcher;
  readonly #parts: PartialIndex | null;
  readonly #tokensPerBlock: number;
  #fetching: FetchAhead | null = null;

  constructor(groups: readonly GroupPages[], parts: PartialIndex | null, tokensPerBlock: number) {
    this.isPossible = groups.every((pages) => !pages.isState);
    this.#groups = groups;
    this.#matcher = new PrefixMatcher(groups);
    this.#parts = parts;
    this.#tokensPerBlock = tokensPerBlock;
  }

  locate(prompt: CachePrompt): PrefixLocation {
    const blocks = this.#match(prompt);
    const part = this.#partAfter(prompt, blocks);
    return {
      prepopulatedLen: blocks * this.#tokensPerBlock + (part?.tokenCount ?? 0),
      places: this.#groups.map((pages) =>
        pages.isState ? [] : prompt.blockHashes.map((hash): BlockPlace => pages.place(hash)),
      ),
    };
  }

  take(prompt: CachePrompt): TakenPrefix {
    this.#fetching = null;
    const blocks = this.#match(prompt);
    const part = this.#partAfter(prompt, blocks);
    let contentAfter = 0;
    const tables = this.#groups.map((pages, index) => {
      const table = this.#takeFrom(pages, index, prompt.blockHashes, blocks, part);
      if (!pages.hasMoved) return table;
      const look: SlotsAction = (slots, begin, end) => {
        contentAfter = Math.max(contentAfter, pages.allContentAfter(slots, begin, end));
      };
      table.withSinks(look);
      table.withRun(look);
      return table;
    });
    const prepopulatedLen = blocks * this.#tokensPerBlock + (part?.tokenCount ?? 0);
    return { prepopulatedLen, blocks, tables, contentAfter };
  }

  /** The content of block `ordinal` of a prompt is final in `slot`. */
  publish(pages: GroupPages, prompt: CachePrompt, ordinal: number, slot: number): void {
    const hash = prompt.blockHashes[ordinal] as string;
    if (!pages.publish(slot, hash) || this.#parts === null || prompt.tokens === undefined) return;
    const begin = ordinal * this.#tokensPerBlock;
    // A copy: the index outlives the prompt.
    this.#parts.add(hash, parentHash(prompt, ordinal), prompt.tokens.slice(begin, begin + this.#tokensPerBlock));
  }

  /** Finds `blocks` more blocks of a prompt that is taken next. @returns true when none is left */
  lookAhead(prompt: CachePrompt, blocks: number): boolean {
    return this.#matcher.lookAhead(prompt.blockHashes, this.#mostBlocks(prompt), blocks);
  }

  /** Brings `blocks` more blocks of a prompt that is taken next, in each group, from the host. @returns true when none is left that it may bring */
  fetchAhead(prompt: CachePrompt, blocks: number): boolean {
    const { blockHashes } = prompt;
    if (this.#fetching?.isOf(blockHashes) !== true) {
      const found = this.#matcher.match(blockHashes, this.#mostBlocks(prompt));
      this.#fetching = FetchAhead.begin(this.#groups, this.#matcher, blockHashes, found, blocks);
    }
    const isDone = this.#fetching?.step(blocks) ?? true;
    if (isDone) this.#fetching = null;
    return isDone;
  }

  #match(prompt: CachePrompt): number {
    const blocks = this.#matcher.match(prompt.blockHashes, this.#mostBlocks(prompt));
    this.#matcher.forget();
    return blocks;
  }

  /** One token must be left to compute, or no forward would produce the first output token. */
  #mostBlocks({ promptLen }: CachePrompt): number {
    return this.isPossible ? blocksFilledBy(promptLen - 1, this.#tokensPerBlock) : 0;
  }

  #partAfter(prompt: CachePrompt, blocks: number): PartialMatch | null {
    const begin = blocks * this.#tokensPerBlock;
    if (this.#parts === null || prompt.tokens === undefined || !this.isPossible) return null;
    // A received block arrives whole.
    if ((prompt.firstToken ?? 0) > begin) return null;
    const end = Math.min(prompt.promptLen, begin + this.#tokensPerBlock) - 1;
    const tokens = prompt.tokens.subarray(begin, end);
    return this.#parts.longest(parentHash(prompt, blocks), tokens, (hash) =>
      this.#groups.every((pages, index) => {
        if (pages.place(hash) === 'absent') return false;
        const slot = pages.slots.find(hash);
        const needed = slot !== null && pages.slots.isIdle(slot) ? 2 : 1;
        return this.#matcher.foundIn(index).costOf(blocks) + needed <= pages.slots.available;
      }),
    );
  }

  #takeFrom(
    pages: GroupPages,
    group: number,
    hashes: readonly string[],
    blocks: number,
    part: PartialMatch | null,
  ): BlockTable {
    const table = pages.newTable();
    const sinkEnd = Math.min(pages.sinkBlocks, blocks);
    const begin = matchBegin(pages, blocks);
    const found = this.#matcher.foundIn(group);
    const sinks = hold(found, 0, sinkEnd);
    const run = hold(found, begin, blocks);
    const partSource = part === null ? null : holdContent(pages, part.hash);

    const isOnDevice = !found.hasOffloaded;
    table.append(isOnDevice ? sinks : fetched(pages, sinks, hashes, 0));
    table.advanceTo(begin);
    table.append(isOnDevice ? run : fetched(pages, run, hashes, begin));
    if (part === null || partSource === null) return table;
    const slot = pages.slots.allocate();
    if ('slot' in partSource) {
      pages.copy(partSource.slot, slot, part.tokenCount);
      pages.slots.release(partSource.slot);
    } else {
      pages.onboard(partSource.hostSlot, slot, part.tokenCount);
      pages.host?.unhold(partSource.hostSlot);
    }
    table.push(slot);
    return table;
  }
}

/** Keeps blocks `[begin, end)` where they are. @returns their places, as long as nothing else is looked up */
function hold(found: FoundBlocks, begin: number, end: number): Int32Array {
  const { slots, host } = found.pages;
  const places = found.places(begin, end);
  if (!found.hasOffloaded) slots.shareAll(places);
  else {
    for (const place of places) {
      if (isOffloaded(place)) host?.hold(hostSlotOf(place));
      else slots.share(place);
    }
  }
  return places;
}

/** The device slots of held blocks, the first of which is `begin`. */
function fetched(pages: GroupPages, places: Int32Array, hashes: readonly string[], begin: number): Int32Array {
  const { host } = pages;
  if (host === null) return places;
  return places.map((place, index) =>
    isOffloaded(place) ? pages.fetch(host, hostSlotOf(place), hashes[begin + index] as string) : place,
  );
}

function holdContent(pages: GroupPages, hash: string): Source {
  const slot = pages.slots.find(hash);
  if (slot === null) {
    const hostSlot = pages.host?.find(hash) as number;
    pages.host?.hold(hostSlot);
    return { hostSlot };
  }
  pages.slots.share(slot);
  return { slot };
}

/** Hash of the prefix before block `ordinal`. */
function parentHash({ blockHashes, rootHash = '' }: CachePrompt, ordinal: number): string {
  return ordinal === 0 ? rootHash : (blockHashes[ordinal - 1] as string);
}
