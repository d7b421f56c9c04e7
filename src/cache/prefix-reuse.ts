import { blocksFilledBy } from '../geometry/bounds.js';
import type { BlockTable } from './block-table.js';
import { matchBegin, OFFLOADED } from './found-blocks.js';
import type { BlockPlace, GroupPages } from './group-pages.js';
import type { CachePrompt } from './kv-cache-manager.js';
import type { PartialIndex, PartialMatch } from './partial-index.js';
import { type PrefixMatch, PrefixMatcher } from './prefix-match.js';

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

  constructor(groups: readonly GroupPages[], parts: PartialIndex | null, tokensPerBlock: number) {
    this.isPossible = groups.every((pages) => !pages.isState);
    this.#groups = groups;
    this.#matcher = new PrefixMatcher(groups);
    this.#parts = parts;
    this.#tokensPerBlock = tokensPerBlock;
  }

  locate(prompt: CachePrompt): PrefixLocation {
    const match = this.#match(prompt);
    const part = this.#partAfter(prompt, match);
    return {
      prepopulatedLen: match.blocks * this.#tokensPerBlock + (part?.tokenCount ?? 0),
      places: this.#groups.map((pages) =>
        pages.isState ? [] : prompt.blockHashes.map((hash): BlockPlace => pages.place(hash)),
      ),
    };
  }

  take(prompt: CachePrompt): TakenPrefix {
    const match = this.#match(prompt);
    const part = this.#partAfter(prompt, match);
    let contentAfter = 0;
    const tables = this.#groups.map((pages, index) => {
      const table = this.#takeFrom(pages, index, prompt.blockHashes, match.blocks, part);
      if (!pages.hasMoved) return table;
      table.forEach((slot) => {
        contentAfter = Math.max(contentAfter, pages.contentAfter(slot));
      });
      return table;
    });
    const prepopulatedLen = match.blocks * this.#tokensPerBlock + (part?.tokenCount ?? 0);
    return { prepopulatedLen, blocks: match.blocks, tables, contentAfter };
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

  #match(prompt: CachePrompt): PrefixMatch {
    return this.#matcher.match(prompt.blockHashes, this.#mostBlocks(prompt));
  }

  /** One token must be left to compute, or no forward would produce the first output token. */
  #mostBlocks({ promptLen }: CachePrompt): number {
    return this.isPossible ? blocksFilledBy(promptLen - 1, this.#tokensPerBlock) : 0;
  }

  #partAfter(prompt: CachePrompt, { blocks, costs }: PrefixMatch): PartialMatch | null {
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
        return (costs[index] as number) + needed <= pages.slots.available;
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
    const isTaken = (ordinal: number): boolean => ordinal < sinkEnd || ordinal >= begin;
    /** Host slots that are held, by ordinal. */
    const offloaded: number[] = [];
    for (let ordinal = 0; ordinal < blocks; ordinal++) {
      if (!isTaken(ordinal)) continue;
      const place = found.placeOf(ordinal);
      if (place === OFFLOADED) offloaded.push(pages.host?.hold(hashes[ordinal] as string) as number);
      else pages.slots.share(place);
    }
    const partSource = part === null ? null : holdContent(pages, part.hash);

    let fetched = 0;
    for (let ordinal = 0; ordinal < blocks; ordinal++) {
      if (ordinal === begin) table.advanceTo(begin);
      if (!isTaken(ordinal)) continue;
      const place = found.placeOf(ordinal);
      if (place !== OFFLOADED) table.push(place);
      else table.push(this.#fetch(pages, hashes[ordinal] as string, offloaded[fetched++] as number));
    }
    table.advanceTo(begin);
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

  /** Held content of the host into a slot of its own. */
  #fetch(pages: GroupPages, hash: string, hostSlot: number): number {
    const slot = pages.slots.allocate();
    pages.onboard(hostSlot, slot, this.#tokensPerBlock);
    pages.publish(slot, hash);
    pages.host?.unhold(hostSlot);
    return slot;
  }
}

function holdContent(pages: GroupPages, hash: string): Source {
  const slot = pages.slots.find(hash);
  if (slot === null) return { hostSlot: pages.host?.hold(hash) as number };
  pages.slots.share(slot);
  return { slot };
}

/** Hash of the prefix before block `ordinal`. */
function parentHash({ blockHashes, rootHash = '' }: CachePrompt, ordinal: number): string {
  return ordinal === 0 ? rootHash : (blockHashes[ordinal - 1] as string);
}
