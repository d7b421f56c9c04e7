import type { PlanStats } from '../mapping/transfer-plan.js';
import { bounceVerdict, type ResolvedBounce } from './bounce.js';
import type { PathAlternative, PathExplanation } from './transfer-agent.js';

/**
 * Which path native code takes for a slice of a receive, as RouterTransport and BouncePath decide it: p2p where it is cheapest, else the
 * bounce path for slices that its thresholds ask for, else what the transport does itself.
 * @param all every path, one entry each
 * @param found what native code says of memory kind and costs
 * @param plain the one path of host memory beside the bounce path
 */
export function choosePath(
  all: readonly PathAlternative[],
  found: { readonly isDevice: boolean; readonly path: number },
  plain: PathExplanation,
  bounce: ResolvedBounce | null,
  stats: Pick<PlanStats, 'coalescedDescriptors' | 'bytes'>,
): PathExplanation {
  const known = found.isDevice ? all : hostPaths(all, plain);
  const cheapest = found.isDevice ? (all[found.path] as PathAlternative) : (known[0] as PathAlternative);
  const arena = known.find(({ path }) => path === 'bounce');
  if (arena === undefined || !arena.isAvailable || bounce === null || cheapest.path === 'p2p')
    return explained(cheapest, known);
  const { isBounced, reason } = bounceVerdict(bounce, stats);
  const judged = known.map((one) => (one === arena ? { ...arena, reason } : one));
  const direct = cheapest === arena ? known.find(({ path, isAvailable }) => path === 'rdma' && isAvailable) : cheapest;
  return explained(isBounced || direct === undefined ? { ...arena, reason } : direct, judged);
}

function hostPaths(all: readonly PathAlternative[], { path, reason }: PathExplanation): PathAlternative[] {
  const [host] = all;
  const bounce = all.filter((one) => one.path === 'bounce');
  return [{ path, reason, isAvailable: true, estimatedUs: host?.estimatedUs ?? 0 }, ...bounce];
}

function explained({ path, reason }: PathAlternative, known: readonly PathAlternative[]): PathExplanation {
  return { path, reason, alternatives: known.filter((other) => other.path !== path) };
}
