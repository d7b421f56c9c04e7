/** Blocks looked at on each side of the place where the tokens would stand; those farther off share ever fewer tokens. */
const NEIGHBOURS = 8;

interface Entry {
  readonly hash: string;
  readonly parent: string;
  readonly tokens: Uint32Array;
  /** Layer groups that hold this content, on the device or the host. */
  holders: number;
}

/** A block whose first `tokenCount` tokens are the ones asked for. */
export interface PartialMatch {
  readonly hash: string;
  readonly tokenCount: number;
}

/**
 * Role: finds, among the blocks that follow a given prefix, the one that shares the most first tokens with a prompt.
 * Why: per prefix the blocks are kept sorted by their tokens, so that the best one is next to where the prompt's own block would stand,
 *   also when thousands of prompts start with the same block.
 */
export class PartialIndex {
  readonly #entries = new Map<string, Entry>();
  /** Blocks after each prefix (by its hash), in the order of their tokens. */
  readonly #children = new Map<string, Entry[]>();

  /** One more layer group holds the block. */
  add(hash: string, parent: string, tokens: Uint32Array): void {
    const known = this.#entries.get(hash);
    if (known !== undefined) {
      known.holders += 1;
      return;
    }
    const entry: Entry = { hash, parent, tokens, holders: 1 };
    this.#entries.set(hash, entry);
    const children = this.#children.get(parent);
    if (children === undefined) this.#children.set(parent, [entry]);
    else children.splice(placeOf(children, tokens), 0, entry);
  }

  /** One layer group less holds the block. Unknown blocks (published without their tokens) are ignored. */
  remove(hash: string): void {
    const entry = this.#entries.get(hash);
    if (entry === undefined) return;
    entry.holders -= 1;
    if (entry.holders > 0) return;
    this.#entries.delete(hash);
    const children = this.#children.get(entry.parent) as Entry[];
    if (children.length === 1) this.#children.delete(entry.parent);
    else children.splice(children.indexOf(entry, placeOf(children, entry.tokens)), 1);
  }

  /**
   * @param parent hash of the prefix before the block
   * @param tokens the prompt's tokens from there on
   * @param isUsable whether a block can be taken now
   */
  longest(parent: string, tokens: Uint32Array, isUsable: (hash: string) => boolean): PartialMatch | null {
    const children = this.#children.get(parent) ?? [];
    const place = placeOf(children, tokens);
    let best: PartialMatch | null = null;
    const look = (index: number): boolean => {
      const entry = children[index];
      if (entry === undefined) return false;
      const tokenCount = sharedTokens(entry.tokens, tokens);
      if (tokenCount <= (best?.tokenCount ?? 0)) return false;
      if (!isUsable(entry.hash)) return true;
      best = { hash: entry.hash, tokenCount };
      return false;
    };
    for (let step = 1; step <= NEIGHBOURS && look(place - step); step++);
    for (let step = 0; step < NEIGHBOURS && look(place + step); step++);
    return best;
  }
}

/** Index of the first entry that does not stand before `tokens`. */
function placeOf(sorted: readonly Entry[], tokens: Uint32Array): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (compareTokens((sorted[middle] as Entry).tokens, tokens) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

function compareTokens(a: Uint32Array, b: Uint32Array): number {
  const shared = sharedTokens(a, b);
  const [left, right] = [a[shared], b[shared]];
  if (left === undefined || right === undefined) return a.length - b.length;
  return left - right;
}

function sharedTokens(a: Uint32Array, b: Uint32Array): number {
  const length = Math.min(a.length, b.length);
  let shared = 0;
  while (shared < length && a[shared] === b[shared]) shared++;
  return shared;
}
