import { RankTally } from './rank-tally.js';

/** Role: when each generated token of a request was out on all ranks, once every rank has ended it. */
export class DecodedTokens {
  /** Rejects when a rank ended the request another way. */
  readonly all: Promise<readonly number[]>;
  readonly #byRank: number[][];
  readonly #tally: RankTally<readonly number[]>;

  constructor(ranks: number) {
    this.#byRank = Array.from({ length: ranks }, () => []);
    let succeed: (tokensMs: readonly number[]) => void = () => {};
    let giveUp: (error: unknown) => void = () => {};
    this.all = new Promise((resolve, reject) => {
      succeed = resolve;
      giveUp = reject;
    });
    this.#tally = new RankTally(ranks, (parts) => succeed(latestOf(parts)), giveUp);
    // A request that failed before its first token has nobody who waits here.
    this.all.catch(() => {});
  }

  note(rank: number, atMs: number): void {
    this.#byRank[rank]?.push(atMs);
  }

  end(rank: number): void {
    this.#tally.complete(rank, this.#byRank[rank] ?? []);
  }

  fail(error: unknown): void {
    this.#tally.fail(error);
  }
}

function latestOf(parts: readonly (readonly number[])[]): readonly number[] {
  const [first = []] = parts;
  return first.map((_, token) => Math.max(...parts.map((times) => times[token] ?? 0)));
}
