import type { RouteCandidate, Router } from './router.js';

/** Each server in turn. A server that comes or goes does not make another one skip its turn. */
export class RoundRobinRouter implements Router {
  /** Name -> the turn it had last; a new server has never had one. */
  readonly #lastTurn = new Map<string, number>();
  #turn = 0;

  choose(candidates: readonly RouteCandidate[]): RouteCandidate {
    const chosen = candidates.reduce((best, one) => (this.#last(one) < this.#last(best) ? one : best));
    this.#lastTurn.set(chosen.name, ++this.#turn);
    return chosen;
  }

  forget(name: string): void {
    this.#lastTurn.delete(name);
  }

  #last({ name }: RouteCandidate): number {
    return this.#lastTurn.get(name) ?? 0;
  }
}
