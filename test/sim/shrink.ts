import type { Plan } from './plan.js';
import { runPlan } from './run-plan.js';

export interface Shrunk {
  readonly plan: Plan;
  readonly runs: number;
}

/**
 * The smallest schedule found that still breaks the same rule: whole halves of the faults and requests are taken away first, then one by
 * one, until nothing can go. Null when the plan does not fail.
 */
export function shrink(
  plan: Plan,
  run: (plan: Plan) => readonly { readonly rule: string }[] = violationsOf,
): Shrunk | null {
  let runs = 1;
  const rule = run(plan)[0]?.rule;
  if (rule === undefined) return null;
  const fails = (candidate: Plan): boolean => {
    runs += 1;
    return run(candidate)[0]?.rule === rule;
  };
  let current = plan;
  for (let smaller = true; smaller; ) {
    smaller = false;
    for (const part of ['faults', 'requests'] as const) {
      for (let size = Math.max(1, current[part].length >> 1); size >= 1; size >>= 1) {
        for (let begin = 0; begin < current[part].length; ) {
          const items: readonly unknown[] = current[part];
          const left = items.filter((_, index) => index < begin || index >= begin + size);
          const candidate = { ...current, [part]: left };
          if (fails(candidate)) {
            current = candidate;
            smaller = true;
          } else begin += size;
        }
      }
    }
  }
  return { plan: current, runs };
}

function violationsOf(plan: Plan): readonly { readonly rule: string }[] {
  return runPlan(plan).violations;
}
