import { runPlan } from '../run-plan.js';
import type { RunReport } from '../run-report.js';
import type { Scenario } from './scenario.js';

export interface ScenarioResult {
  readonly report: RunReport;
  /** What is not as the scenario expects; empty = as it should be. */
  readonly problems: readonly string[];
}

/** Call it through `inMacrotask`. */
export function runScenario(scenario: Scenario, tell = false): ScenarioResult {
  const { plan, prepare, check, expect, counters = {} } = scenario;
  const report = runPlan(plan, {
    tell,
    ...(prepare === undefined ? {} : { prepare }),
    ...(check === undefined ? {} : { check }),
  });
  const problems = report.violations.map(({ rule, text }) => `${rule}: ${text}`);
  for (const [number, { withinMs, code, ...outcomes }] of Object.entries(expect)) {
    const endings = report.endings.get(Number(number)) ?? [];
    const told = `request ${number}: ${JSON.stringify(endings)}`;
    for (const [who, outcome] of Object.entries(outcomes))
      if (endings.find((ending) => ending.who === who)?.outcome !== outcome)
        problems.push(`expected ${who} ${outcome}, ${told}`);
    if (code !== undefined && !endings.some((ending) => ending.code === code))
      problems.push(`expected ${code}, ${told}`);
    const atMs = plan.requests.find((item) => item.number === Number(number))?.atMs ?? 0;
    if (withinMs !== undefined && endings.some((ending) => ending.atMs - atMs > withinMs))
      problems.push(`expected an end within ${withinMs} ms, ${told}`);
  }
  for (const [name, least] of Object.entries(counters))
    if ((report.counters[name] ?? 0) < least)
      problems.push(`expected ${name} to count ${least}: ${JSON.stringify(report.counters)}`);
  return { report, problems };
}
