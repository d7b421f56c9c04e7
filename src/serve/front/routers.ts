import type { DisaggServerGroup } from '../../config/index.js';
import { LeastLoadedRouter } from '../../coordinator/least-loaded-router.js';
import { PrefixOverlapRouter } from '../../coordinator/prefix-overlap-router.js';
import { RoundRobinRouter } from '../../coordinator/round-robin-router.js';
import type { Router } from '../../coordinator/router.js';

/** The router that a section of the file names. */
export function routerOf(name: DisaggServerGroup['router'], tokensPerBlock: number): Router {
  switch (name) {
    case 'round_robin':
      return new RoundRobinRouter();
    case 'least_loaded':
      return new LeastLoadedRouter();
    case 'prefix_overlap':
      return new PrefixOverlapRouter({ tokensPerBlock });
  }
}
