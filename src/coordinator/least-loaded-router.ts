import { RoundRobinRouter } from './round-robin-router.js';
import type { RouteCandidate, Router } from './router.js';

/** The server with the fewest prompt tokens in work; equal ones in turn. */
export class LeastLoadedRouter implements Router {
  readonly #turns = new RoundRobinRouter();

  choose(candidates: readonly RouteCandidate[]): RouteCandidate {
    const least = Math.min(...candidates.map(({ liveTokens }) => liveTokens));
    return this.#turns.choose(candidates.filter(({ liveTokens }) => liveTokens === least));
  }

  forget(name: string): void {
    this.#turns.forget(name);
  }
}
