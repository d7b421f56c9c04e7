import { TransportError } from '../errors.js';
import type { PageMove, PageMover, PagesReady } from './page-mover.js';

interface Batch {
  readonly moves: readonly PageMove[];
  readonly ready: PagesReady | null;
  /** Settles, never rejects, when this batch and all before it are over. */
  settled: Promise<void>;
  failure: TransportError | null;
}

/**
 * Role: collects the moves that one call of the cache manager causes, hands them over as one numbered batch, and knows which batches
 *   are over.
 * Ordering: batches settle in order, so "after batch n" also means after every batch before it; 0 = no batch.
 * Invariant: when a batch has failed, every batch pending at that moment counts as failed, whatever the mover says of it later.
 */
export class MoveQueue {
  readonly #mover: PageMover | null;
  readonly #onFailed: (batch: number, moves: readonly PageMove[], error: TransportError) => void;
  /** In the order of their numbers. */
  readonly #pending = new Map<number, Batch>();
  #collected: PageMove[] = [];
  #lastHanded = 0;
  #lastSettled = 0;

  /** `onFailed` is called before anybody who waits for the batch hears of it. */
  constructor(
    mover: PageMover | null,
    onFailed: (batch: number, moves: readonly PageMove[], error: TransportError) => void,
  ) {
    this.#mover = mover;
    this.#onFailed = onFailed;
  }

  /** @returns the number of the batch that the move will be in */
  add(move: PageMove): number {
    this.#collected.push(move);
    return this.#lastHanded + 1;
  }

  /** Hands over what was collected. A mover that throws has moved nothing: the batch has failed. */
  flush(): void {
    const moves = this.#collected;
    if (moves.length === 0) return;
    this.#collected = [];
    this.#lastHanded += 1;
    let ready: PagesReady | null;
    try {
      ready = this.#mover?.move(moves) ?? null;
    } catch (error) {
      ready = { event: null, done: Promise.reject(error) };
    }
    if (ready === null && this.#pending.size === 0) {
      this.#lastSettled = this.#lastHanded;
      return;
    }
    const number = this.#lastHanded;
    const before = this.settled();
    const batch: Batch = { moves, ready, settled: before, failure: null };
    batch.settled = Promise.allSettled([ready?.done, before]).then(([outcome]) => {
      this.#settle(number, batch, outcome.status === 'rejected' ? outcome.reason : null);
    });
    this.#pending.set(number, batch);
  }

  isOver(batch: number): boolean {
    return batch <= this.#lastSettled;
  }

  /** @param batch not over yet */
  pending(batch: number): { readonly event: PagesReady['event']; readonly settled: Promise<void> } {
    const found = this.#pending.get(batch) as Batch;
    return { event: found.ready?.event ?? null, settled: found.settled };
  }

  /** Settles when everything handed over so far is over. */
  settled(): Promise<void> {
    return [...this.#pending.values()].at(-1)?.settled ?? Promise.resolve();
  }

  #settle(number: number, batch: Batch, reason: unknown): void {
    this.#pending.delete(number);
    this.#lastSettled = number;
    const failure = batch.failure ?? (reason === null ? null : moveError(reason));
    if (failure === null) return;
    for (const later of this.#pending.values()) later.failure ??= failure;
    this.#onFailed(number, batch.moves, failure);
  }
}

function moveError(reason: unknown): TransportError {
  const text = reason instanceof Error ? reason.message : String(reason);
  return new TransportError(`moving cached pages failed: ${text}`, { cause: reason, drained: true });
}
