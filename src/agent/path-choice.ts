import type { PlanStats, TransferPlan } from '../mapping/transfer-plan.js';
import { bounceVerdict, type ResolvedBounce } from './bounce.js';
import type { DataPath, PathAlternative, PathExplanation } from './transfer-agent.js';

/**
 * What native code says of a slice under a ticket, in words. A plan without slots is judged by its counts alone.
 * @param all every path, one entry each
 * @param taken the one that native code takes; `host` is what moves host memory, whatever that is
 * @param plain the one path of host memory beside the bounce path
 */
export function choosePath(
  all: readonly PathAlternative[],
  taken: { readonly isDevice: boolean; readonly path: DataPath },
  plain: PathExplanation,
  bounce: ResolvedBounce | null,
  plan: Pick<TransferPlan, 'groups'> & { readonly stats: Pick<PlanStats, 'coalescedDescriptors' | 'bytes'> },
): PathExplanation {
  const known = taken.isDevice ? all : hostPaths(all, plain);
  const chosen = known.find(({ path }) => path === taken.path) ?? (known[0] as PathAlternative);
  const arena = known.find(({ path }) => path === 'bounce');
  if (arena === undefined || !arena.isAvailable || bounce === null || chosen.path === 'p2p')
    return explained(chosen, known);
  if (taken.isDevice && !bounce.hasThresholds && !bounce.isForced) return byCost(chosen, arena, known);
  const verdict = plan.groups.length === 0 ? bounceVerdict(bounce, plan.stats) : { isBounced: chosen === arena };
  const judged = { ...arena, reason: verdictReason(bounce, plan.stats, verdict.isBounced) };
  const others = known.map((one) => (one === arena ? judged : one));
  return explained(verdict.isBounced ? judged : chosen, others);
}

/** Beside p2p, the one of `bounce` and `rdma` that costs less. */
function byCost(chosen: PathAlternative, arena: PathAlternative, known: readonly PathAlternative[]): PathExplanation {
  const other = known.find(({ path, isAvailable }) => path === 'rdma' && isAvailable);
  if (other === undefined) return explained(chosen, known);
  const [bounceUs, rdmaUs] = [arena, other].map(({ estimatedUs }) => `${Math.round(estimatedUs)} µs`);
  const verdict = chosen === arena ? 'taken by cost' : 'not taken by cost';
  const judged = { ...arena, reason: `${arena.reason}; ${verdict}: ${bounceUs} against ${rdmaUs} by rdma` };
  return explained(
    chosen === arena ? judged : chosen,
    known.map((one) => (one === arena ? judged : one)),
  );
}

function hostPaths(all: readonly PathAlternative[], { path, reason }: PathExplanation): PathAlternative[] {
  const [host] = all;
  const bounce = all.filter((one) => one.path === 'bounce');
  return [{ path, reason, isAvailable: true, estimatedUs: host?.estimatedUs ?? 0 }, ...bounce];
}

function explained({ path, reason }: PathAlternative, known: readonly PathAlternative[]): PathExplanation {
  return { path, reason, alternatives: known.filter((other) => other.path !== path) };
}

/** By the plan's own counts where they agree: those of a caller may be an upper bound. */
function verdictReason(
  bounce: ResolvedBounce,
  stats: Pick<PlanStats, 'coalescedDescriptors' | 'bytes'>,
  isBounced: boolean,
): string {
  const counted = bounceVerdict(bounce, stats);
  if (counted.isBounced === isBounced) return counted.reason;
  const { minDescriptorCount, maxAverageDescriptorSize } = bounce;
  const bar = `${minDescriptorCount} descriptors of at most ${maxAverageDescriptorSize} bytes on average`;
  return isBounced ? `at least ${bar}` : `not ${bar} once the joined ones are counted as one`;
}
