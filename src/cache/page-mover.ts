import type { ReadyEvent } from '../agent/transfer-agent.js';

/**
 * Content that one page takes over from another, inside one layer group.
 * `tokenCount` tokens from the first on must be right afterwards; copying the whole page is always allowed.
 */
export type PageMove =
  /** Saves a page that is about to be given to somebody else. */
  | { readonly kind: 'offload'; readonly group: number; readonly slot: number; readonly hostSlot: number }
  /** Brings a saved page back. */
  | {
      readonly kind: 'onboard';
      readonly group: number;
      readonly hostSlot: number;
      readonly slot: number;
      readonly tokenCount: number;
    }
  /** Takes over the first tokens of a page that others go on using. */
  | {
      readonly kind: 'copy';
      readonly group: number;
      readonly fromSlot: number;
      readonly toSlot: number;
      readonly tokenCount: number;
    };

/** Pages that are still being moved. */
export interface PagesReady {
  /** Signalled when the moves are over, failed when they failed. Null: nothing a device could wait for; wait for `done`. */
  readonly event: ReadyEvent | null;
  /** Settles when no move touches the pages any more; rejects when their content is not what was promised. */
  readonly done: Promise<void>;
}

/**
 * Moves pages for a cache manager, on behalf of the engine that owns the memory.
 *
 * Ordering: batches run one after another, and the moves of one batch in the order given (a page may be saved and overwritten in the
 *   same batch). The manager hands a slot out as soon as the batch that frees it was handed over, so work that touches the pages of a
 *   request waits for `pagesReady(request)`: a forward is enqueued behind the event, a peer is asked to write after `done`.
 * Failure: as on a device stream, a batch that fails takes with it every batch that was handed over before the failure was reported.
 */
export interface PageMover {
  /**
   * Enqueues and returns at once; never waits for the device.
   * @returns null when this batch and all before it are already over
   */
  move(moves: readonly PageMove[]): PagesReady | null;
}
