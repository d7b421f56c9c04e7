import type { PageMove, PageMover, PagesReady } from '../../src/cache/index.js';

interface Pending {
  readonly moves: readonly PageMove[];
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** What a page position holds that nobody filled. */
export const JUNK = 'junk';

/**
 * Pages of every layer group on the device and the host, a text per token position, and a mover that runs only when it is told to: what
 * a page holds is then a matter of the order in which things happened, as on real devices.
 */
export class CacheMemory implements PageMover {
  readonly device: string[][][];
  readonly host: string[][][];
  readonly #tokensPerBlock: number;
  /** Batches not yet run, oldest first. */
  readonly pending: Pending[] = [];
  readonly handed: PageMove[][] = [];
  /** Runs batches as they come and says so at once. */
  immediate = false;

  constructor(tokensPerBlock: number, slotCounts: readonly number[], hostSlotCounts: readonly number[]) {
    this.#tokensPerBlock = tokensPerBlock;
    const pages = (count: number): string[][] => Array.from({ length: count }, () => this.#empty());
    this.device = slotCounts.map(pages);
    this.host = hostSlotCounts.map(pages);
  }

  move(moves: readonly PageMove[]): PagesReady | null {
    this.handed.push([...moves]);
    if (this.immediate) {
      for (const move of moves) this.#run(move);
      return null;
    }
    let settle: Pick<Pending, 'resolve' | 'reject'> | undefined;
    const done = new Promise<void>((resolve, reject) => {
      settle = { resolve, reject };
    });
    this.pending.push({ moves, ...(settle as Pick<Pending, 'resolve' | 'reject'>) });
    return { event: null, done };
  }

  /** Runs the oldest batch. */
  async runNext(): Promise<void> {
    const batch = this.pending.shift();
    if (batch === undefined) throw new Error('no batch is pending');
    for (const move of batch.moves) this.#run(move);
    batch.resolve();
    await settledPromises();
  }

  async runAll(): Promise<void> {
    while (this.pending.length > 0) await this.runNext();
  }

  /** The device reports an error: the oldest batch and all behind it end, and what they should have filled is junk. */
  async failAll(message: string): Promise<void> {
    for (const batch of this.pending.splice(0)) {
      for (const move of batch.moves) this.#target(move).fill(JUNK);
      batch.reject(new Error(message));
    }
    await settledPromises();
  }

  /** Fills token positions `[begin, end)` of a prompt into the page of their block. */
  write(group: number, slot: number, contents: readonly string[], begin: number): void {
    const page = this.device[group]?.[slot] as string[];
    contents.forEach((content, index) => {
      page[(begin + index) % this.#tokensPerBlock] = content;
    });
  }

  #run(move: PageMove): void {
    const target = this.#target(move);
    const source = this.#source(move);
    const count = move.kind === 'offload' ? this.#tokensPerBlock : move.tokenCount;
    for (let index = 0; index < this.#tokensPerBlock; index++) {
      target[index] = index < count ? (source[index] as string) : JUNK;
    }
  }

  #source(move: PageMove): string[] {
    if (move.kind === 'onboard') return this.host[move.group]?.[move.hostSlot] as string[];
    return this.device[move.group]?.[move.kind === 'copy' ? move.fromSlot : move.slot] as string[];
  }

  #target(move: PageMove): string[] {
    if (move.kind === 'offload') return this.host[move.group]?.[move.hostSlot] as string[];
    return this.device[move.group]?.[move.kind === 'copy' ? move.toSlot : move.slot] as string[];
  }

  #empty(): string[] {
    return new Array<string>(this.#tokensPerBlock).fill(JUNK);
  }
}

/** Lets every promise that is settled by now run its continuations. */
export async function settledPromises(): Promise<void> {
  await new Promise<void>((resolve) => {
    setImmediate(resolve);
  });
}
