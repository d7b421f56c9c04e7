import { randomPlan } from './random-plan.js';
import { runPlan } from './run-plan.js';
import type { RunReport } from './run-report.js';

export interface HuntResult {
  readonly lives: number;
  readonly completed: number;
  readonly seeds: number;
  readonly nextSeed: number;
  readonly events: number;
  readonly virtualMs: number;
  /** First run that broke something. */
  readonly failure: RunReport | null;
  readonly counters: Readonly<Record<string, number>>;
}

/** Runs seed after seed until so many request lives were lived, or one run breaks something. */
export function hunt(firstSeed: number, lives: number, onRun: (report: RunReport) => void = () => {}): HuntResult {
  // Thousands of typed errors are made and thrown away; a failing seed is replayed with its stacks.
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  let seed = firstSeed;
  let [lived, completed, events, virtualMs] = [0, 0, 0, 0];
  const counters: Record<string, number> = {};
  let failure: RunReport | null = null;
  while (lived < lives && failure === null) {
    const report = runPlan(randomPlan(seed));
    seed += 1;
    lived += report.lives;
    completed += report.completed;
    events += report.events;
    virtualMs += report.virtualMs;
    for (const [name, count] of Object.entries(report.counters)) counters[name] = (counters[name] ?? 0) + count;
    if (report.violations.length > 0) failure = report;
    onRun(report);
  }
  Error.stackTraceLimit = stackTraceLimit;
  return { lives: lived, completed, seeds: seed - firstSeed, nextSeed: seed, events, virtualMs, failure, counters };
}
