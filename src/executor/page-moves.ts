import type { KvCacheManager } from '../cache/kv-cache-manager.js';
import type { PagesReady } from '../cache/page-mover.js';
import type { LlmRequest } from './request.js';
import type { RequestEndings } from './request-endings.js';
import type { Entry } from './request-table.js';
import { typedError } from './typed-error.js';

export interface PageMovesOptions {
  readonly cache: KvCacheManager;
  readonly endings: RequestEndings;
  /** Moves that somebody waited for are over. */
  readonly onOver: () => void;
}

/**
 * Role: whether the cache manager still moves pages of a request, asked at one place. A request whose content could not be brought is given
 *   up by the question.
 */
export class PageMoves {
  readonly #o: PageMovesOptions;
  /** Requests whose moves will call `onOver`. */
  readonly #awaited = new WeakSet<LlmRequest>();

  constructor(options: PageMovesOptions) {
    this.#o = options;
  }

  /** What a forward that touches the request's pages waits for. Null: nothing, or the request was given up. */
  of(entry: Entry): PagesReady | null {
    return this.#ask(entry, () => this.#o.cache.pagesReady?.(entry.request.id) ?? null);
  }

  /** What a transfer of the reused prefix waits for. Null: nothing, or the request was given up. */
  ofPrefix(entry: Entry): PagesReady | null {
    const { cache } = this.#o;
    if (cache.prefixReady === undefined) return this.of(entry);
    return this.#ask(entry, () => cache.prefixReady?.(entry.request.id) ?? null);
  }

  /** False: its pages may be touched now. True: not yet, and `onOver` is called when they may; or the request was given up. */
  holdBack(entry: Entry): boolean {
    const { request } = entry;
    const ready = this.of(entry);
    if (ready === null) return entry.outcome !== null;
    if (this.#awaited.has(request)) return true;
    this.#awaited.add(request);
    const over = (): void => {
      this.#awaited.delete(request);
      this.#o.onOver();
    };
    // A failure is met by the next look.
    ready.done.then(over, over);
    return true;
  }

  #ask(entry: Entry, ask: () => PagesReady | null): PagesReady | null {
    try {
      return ask();
    } catch (error) {
      this.#o.endings.abandon(entry, typedError(error, 'pagesReady failed'));
      return null;
    }
  }
}
