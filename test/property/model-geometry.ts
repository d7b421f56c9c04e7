/** Shapes of the caches that the model covers, and which blocks each needs, asked position by position. */

export const TPB = 3;

export interface ModelGroup {
  readonly window: number | null;
  readonly sinkTokens: number;
  readonly slotCount: number;
  readonly hostSlotCount: number;
  readonly isState: boolean;
}

export interface ModelOptions {
  readonly reserving: boolean;
  readonly groups: readonly ModelGroup[];
  readonly seed: number;
  readonly partialReuse: boolean;
  readonly speculativeTokens: number;
  /** Block size of whoever sends; 1 = unknown. */
  readonly senderTokensPerBlock: number;
}

export interface ModelRequest {
  readonly tokens: readonly number[];
  readonly promptLen: number;
  readonly receives: boolean;
  /** Newest batch of moves that its content came by; -1 = none. */
  readonly broughtBy: number;
  failed: boolean;
  /** Per group: blocks that a transfer does not fill, or not whole. */
  readonly unfilled: readonly Set<number>[];
  computed: number;
  /** Blocks that were asked for, and all blocks. */
  end: number;
  tableEnd: number;
  /** Per group: ordinal -> slot. */
  readonly blocks: readonly Map<number, number>[];
}

/** Content of a position is everything up to it; content of a block that of its last position. */
export type Content = string;

export class ModelGeometry {
  readonly #o: ModelOptions;

  constructor(options: ModelOptions) {
    this.#o = options;
  }

  neverFits(promptLen: number, receives: boolean): boolean {
    const { reserving, speculativeTokens, groups } = this.#o;
    const next = reserving ? (receives ? promptLen : 0) : promptLen;
    return groups.some((group, index) => {
      if (group.isState) return false;
      let blocks = 0;
      for (let ordinal = 0; ordinal * TPB < promptLen + speculativeTokens; ordinal++) {
        if (this.isSeen(index, ordinal, next)) blocks++;
      }
      return blocks > group.slotCount;
    });
  }

  /** Block of `ordinal` must exist for the token that follows `tokens` tokens. */
  isSeen(index: number, ordinal: number, tokens: number): boolean {
    return ordinal * TPB < (this.#o.groups[index]?.sinkTokens ?? 0) || this.isInWindow(index, ordinal, tokens);
  }

  /** Sinks are pinned wherever the window begins. */
  isPinned(index: number, ordinal: number, first: readonly number[], promptLen: number): boolean {
    if (ordinal * TPB >= promptLen) return false;
    return ordinal >= (first[index] as number) || ordinal * TPB < (this.#o.groups[index]?.sinkTokens ?? 0);
  }

  /** A sender sends each of its blocks that holds a sink token, or a position that the next token sees. */
  arrivesWhole(index: number, ordinal: number, promptLen: number): boolean {
    const { window, sinkTokens } = this.#o.groups[index] as ModelGroup;
    const size = this.#o.senderTokensPerBlock;
    for (let position = ordinal * TPB; position < (ordinal + 1) * TPB; position++) {
      const first = position - (position % size);
      const last = first + size - 1;
      if (window !== null && first >= sinkTokens && promptLen - last >= window) return false;
    }
    return true;
  }

  isInWindow(index: number, ordinal: number, tokens: number): boolean {
    const window = this.#o.groups[index]?.window ?? null;
    for (let position = ordinal * TPB; position < (ordinal + 1) * TPB; position++) {
      if (window === null || tokens - position < window) return true;
    }
    return false;
  }
}

/** Generated tokens are nobody else's. */
export function contentOf(tokens: readonly number[], length: number, id?: number): Content {
  const prompt = tokens.slice(0, length).join();
  return length > tokens.length ? `${prompt} +${length - tokens.length} of ${id}` : prompt;
}

/** Of the block whose last position has this content. */
export function ordinalOf(content: Content): number {
  return content.split(',').length / TPB - 1;
}
