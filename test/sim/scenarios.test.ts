import { describe, expect, it } from 'vitest';
import { inMacrotask } from './core/microtasks.js';
import { SCENARIO_GROUPS } from './scenarios/index.js';
import { runScenario } from './scenarios/run-scenario.js';

describe.each(SCENARIO_GROUPS)('$group', ({ scenarios, byDesign }) => {
  it.each(scenarios)('$name', async (scenario) => {
    const { problems } = await inMacrotask(() => runScenario(scenario));
    if (problems.length === 0) return;
    const { report } = await inMacrotask(() => runScenario(scenario, true));
    expect(problems, report.story.slice(-150).join('\n')).toEqual([]);
  });

  it('every entry has a reference, and every one that cannot happen a reason', () => {
    for (const { references } of [...scenarios, ...byDesign]) {
      expect(references.length).toBeGreaterThan(0);
      for (const reference of references) expect(reference).toMatch(/^https:\/\/|^simulator|^review/);
    }
    for (const { why } of byDesign) expect(why.length).toBeGreaterThan(40);
  });
});
