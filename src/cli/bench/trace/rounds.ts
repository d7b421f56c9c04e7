import type { PlannedRequest, RequestGroup } from '../ttft/workload.js';
import { type StandingCache, type StandingPrompt, standingPrompts } from './standing-prompts.js';

/** The caches that a variant must find as it left them; null: that server finds nothing again. */
export interface StandingCaches {
  readonly context: StandingCache | null;
  readonly generation: StandingCache | null;
}

/**
 * Cuts the replay of each variant into rounds, and lets the variants take turns round by round, each time another one first: what the machine does
 * besides then hits all of them alike.
 * Accounting: a round begins with its first arrival and an empty queue, and ends with its last request. What its variant left in the caches
 * has given way to the others meanwhile: all that would still be there is put back before the clock runs, in the order of its last use.
 * @param variants the whole replay, one group for each variant, over the same arrivals
 */
export function inRounds(
  variants: readonly RequestGroup[],
  rounds: number,
  caches: StandingCaches,
): readonly RequestGroup[] {
  const length = Math.max(0, ...variants.map(({ requests }) => requests.length));
  const count = Math.min(rounds, Math.max(1, length));
  return Array.from({ length: count }, (_, round) => {
    const [begin, end] = [round, round + 1].map((one) => Math.floor((one * length) / count)) as [number, number];
    return variants.map((__, turn) => {
      const group = variants[(turn + round) % variants.length] as RequestGroup;
      const label = count === 1 ? group.label : `${group.label}, round ${round + 1} of ${count}`;
      return {
        label,
        requests: roundOf(group.requests, begin, end, round),
        standing: {
          context: standingIn(caches.context, group.requests, begin, end),
          generation: standingIn(caches.generation, group.requests, begin, end),
        },
      };
    });
  }).flat();
}

function roundOf(
  requests: readonly PlannedRequest[],
  begin: number,
  end: number,
  round: number,
): readonly PlannedRequest[] {
  const firstMs = requests[begin]?.arrivalMs ?? 0;
  return requests.slice(begin, end).map((request) => ({
    ...request,
    round,
    arrivalMs: (request.arrivalMs ?? 0) - firstMs,
  }));
}

function standingIn(
  cache: StandingCache | null,
  requests: readonly PlannedRequest[],
  begin: number,
  end: number,
): readonly StandingPrompt[] {
  return cache === null ? [] : standingPrompts(requests, begin, end, cache);
}

/** So many that a variant has no long stretch for itself, and so few that a round is mostly traffic and not its beginning and its end. */
export function defaultRounds(requests: number): number {
  return requests < 300 ? 3 : 6;
}
