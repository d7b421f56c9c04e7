import { blocksFilledBy } from '../geometry/bounds.js';
import type { BlockTable } from './block-table.js';
import type { BlockPlace, GroupPages } from './group-pages.js';
import type { CachePrompt } from './kv-cache-manager.js';
import type { PartialIndex, PartialMatch } from './partial-index.js';
import { matchBegin, matchPrefix, type PrefixMatch } from './prefix-match.js';

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
type Source = { readonly slot: number } | { readonly hash: string; readonly hostSlot: number };

/**
 * Role: finds what of a prompt is cached and gives it to a request.
 * Ownership: whole blocks on the device are shared. Blocks on the host are fetched into new slots, which are then shared like any other.
 *   A part of a block is copied into a slot of the request's own, because it will write the rest of that block.
 * Ordering: everything a hit needs is held before the first slot is allocated for it, so that it cannot evict its own content.
 */
export class PrefixReuse {
  readonly #groups: readonly GroupPages[];
  readonly #parts: PartialIndex | null;
  readonly #tokensPerBlock: number;

  constructor(groups: readonly GroupPages[], parts: PartialIndex | null, tokensPerBlock: number) {
    this.#groups = groups;
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
    const tables = this.#groups.map((pages) => {
      const table = this.#takeFrom(pages, prompt.blockHashes, match.blocks, part);
      table.forEachDescending((slot) => {
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

  /** Recurrent state is not kept per block: what was computed before cannot be resumed from, so nothing of it is taken. */
  get isPossible(): boolean {
    return this.#groups.every((pages) => !pages.isState);
  }

  #match({ promptLen, blockHashes }: CachePrompt): PrefixMatch {
    // One token must be left to compute, or no forward would produce the first output token.
    const most = this.isPossible ? blocksFilledBy(promptLen - 1, this.#tokensPerBlock) : 0;
    return matchPrefix(this.#groups, blockHashes, most);
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

  #takeFrom(pages: GroupPages, hashes: readonly string[], blocks: number, part: PartialMatch | null): BlockTable {
    const table = pages.newTable();
    const hold = (begin: number, end: number): Source[] =>
      hashes.slice(begin, end).map((hash) => holdContent(pages, hash));
    const begin = matchBegin(pages, blocks);
    const sinks = hold(0, Math.min(pages.sinkBlocks, blocks));
    const run = hold(begin, blocks);
    const partSource = part === null ? null : holdContent(pages, part.hash);

    for (const source of sinks) table.push(this.#ownSlot(pages, source));
    table.advanceTo(begin);
    for (const source of run) table.push(this.#ownSlot(pages, source));
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

  /** The held content's slot on the device, fetched where it is not there. */
  #ownSlot(pages: GroupPages, source: Source): number {
    if ('slot' in source) return source.slot;
    const slot = pages.slots.allocate();
    pages.onboard(source.hostSlot, slot, this.#tokensPerBlock);
    pages.publish(slot, source.hash);
    pages.host?.unhold(source.hostSlot);
    return slot;
  }
}

function holdContent(pages: GroupPages, hash: string): Source {
  const slot = pages.slots.find(hash);
  if (slot === null) return { hash, hostSlot: pages.host?.hold(hash) as number };
  pages.slots.share(slot);
  return { slot };
}

/** Hash of the prefix before block `ordinal`. */
function parentHash({ blockHashes, rootHash = '' }: CachePrompt, ordinal: number): string {
  return ordinal === 0 ? rootHash : (blockHashes[ordinal - 1] as string);
}
