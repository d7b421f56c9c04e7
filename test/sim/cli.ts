import { parseArgs } from 'node:util';
import { inMacrotask } from './core/microtasks.js';
import { type HuntResult, hunt } from './hunt.js';
import { MUTANTS, type Mutant } from './mutants/index.js';
import { describeFault, describeRequest, type Plan } from './plan.js';
import { randomPlan } from './random-plan.js';
import { runPlan } from './run-plan.js';
import type { RunReport } from './run-report.js';
import { SCENARIO_GROUPS } from './scenarios/index.js';
import { runScenario } from './scenarios/run-scenario.js';
import { shrink } from './shrink.js';

const USAGE = `npm run sim -- [options]
  --seed N        replay one run: its story, its trace hash, twice the same
  --shrink        with --seed: the smallest schedule that still fails, and its story
  --runs N        live N request lives, seed after seed (default 20000)
  --from N        first seed of --runs (default 1)
  --keep-going    with --runs: go on after a failure and count failures by rule
  --jobs N        with --runs, --mutants: so many processes at once; a series is the same however many live it
  --short-turns   every portion of long work ends after one unit: by itself none ends early here, for the clock stands still while code works
  --mutants       prove that every seeded mutant is caught (--runs N: within N lives each, default 20000; --only NAME, repeatable)
  --share K/N     with --mutants: every Nth of them, from the Kth on; CI takes one of 12 by its commit
  --markdown FILE with --mutants: renews the table in that page, or writes it to a new file
  --table FILE    with --markdown PAGE: puts such a file into a page
  --scenarios     live every scenario first
  --json          with --runs: the result as JSON
  --pack FILE     the simulator, its mutants and this Node as an archive that needs nothing else
`;

/** For the runner, which compiles a build for each. */
export function listMutants(): { readonly mutants: readonly Mutant[] } {
  return { mutants: MUTANTS };
}

/** @returns the exit status: 0 = nothing broke */
export async function main(args: readonly string[]): Promise<number> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      seed: { type: 'string' },
      shrink: { type: 'boolean', default: false },
      runs: { type: 'string', default: '20000' },
      from: { type: 'string', default: '1' },
      'keep-going': { type: 'boolean', default: false },
      json: { type: 'boolean', default: false },
      scenarios: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.help) {
    process.stdout.write(USAGE);
    return 0;
  }
  if (values.seed !== undefined) return replay(count('--seed', values.seed), values.shrink);
  const lives = count('--runs', values.runs);
  const from = count('--from', values.from);
  if (values['keep-going']) return survey(from, lives);
  let scenarioLives = 0;
  if (values.scenarios) {
    const outcome = await liveScenarios();
    scenarioLives = outcome.lives;
    if (outcome.broken !== null && values.json) {
      process.stdout.write(`${JSON.stringify({ lives: scenarioLives, violation: { rule: outcome.broken } })}\n`);
      return 1;
    }
  }
  const before = process.cpuUsage();
  const result = await inMacrotask(() => hunt(from, lives));
  const { user, system } = process.cpuUsage(before);
  const seconds = (user + system) / 1e6;
  if (values.json) {
    const { lives: lived, seeds, failure } = result;
    process.stdout.write(
      `${JSON.stringify({ lives: lived + scenarioLives, seeds, seconds, seed: failure?.seed ?? null, violation: failure?.violations[0] ?? null })}\n`,
    );
  } else tell(result, from, seconds);
  return result.failure === null ? 0 : 1;
}

/** Every scenario; stops at the first that does not end as it should. */
async function liveScenarios(): Promise<{ readonly lives: number; readonly broken: string | null }> {
  let lives = 0;
  for (const { scenarios } of SCENARIO_GROUPS)
    for (const scenario of scenarios) {
      const { report, problems } = await inMacrotask(() => runScenario(scenario));
      lives += report.lives;
      const [first] = problems;
      if (first === undefined) continue;
      process.stdout.write(`scenario "${scenario.name}": ${first}\n`);
      return { lives, broken: `scenario: ${scenario.name}` };
    }
  return { lives, broken: null };
}

function count(option: string, text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < 0)
    throw new RangeError(`${option} is ${text}; it must be a whole number`);
  return value;
}

function tell(result: HuntResult, from: number, seconds: number): void {
  const { lives, completed, seeds, events, virtualMs, failure } = result;
  const say = (line: string): boolean => process.stdout.write(`${line}\n`);
  say(
    `${lives} request lives (${completed} completed), seeds ${from} to ${from + seeds - 1}, ${seconds.toFixed(1)} s of one core: ` +
      `${Math.round(lives / seconds)} lives/s, ${(events / lives).toFixed(0)} events a life, ${(virtualMs / seeds / 1000).toFixed(1)} virtual s a run`,
  );
  if (failure === null) {
    say('nothing broke');
    return;
  }
  for (const { rule, text, atMs } of failure.violations)
    say(`seed ${failure.seed}, ${atMs.toFixed(1)} ms: ${rule}: ${text}`);
  say(`replay: npm run sim -- --seed ${failure.seed}    shrink: npm run sim -- --seed ${failure.seed} --shrink`);
}

/** How often which rule broke, and the first seeds of each. */
async function survey(from: number, lives: number): Promise<number> {
  const byRule = new Map<string, { count: number; readonly seeds: number[]; readonly text: string }>();
  let [lived, seed, failed] = [0, from, 0];
  const startedAt = process.hrtime.bigint();
  while (lived < lives) {
    const report = await inMacrotask(() => runPlan(randomPlan(seed)));
    lived += report.lives;
    const [first] = report.violations;
    if (first !== undefined) {
      failed += 1;
      const entry = byRule.get(first.rule) ?? { count: 0, seeds: [], text: first.text };
      entry.count += 1;
      if (entry.seeds.length < 8) entry.seeds.push(seed);
      byRule.set(first.rule, entry);
    }
    seed += 1;
  }
  const seconds = Number(process.hrtime.bigint() - startedAt) / 1e9;
  process.stdout.write(
    `${lived} lives, seeds ${from} to ${seed - 1}, ${(lived / seconds).toFixed(0)} lives/s, ${failed} runs failed\n`,
  );
  for (const [rule, { count: times, seeds, text }] of byRule)
    process.stdout.write(`  ${times} x ${rule}, seeds ${seeds.join(' ')}\n      ${text.slice(0, 300)}\n`);
  return failed === 0 ? 0 : 1;
}

async function replay(seed: number, shrinking: boolean): Promise<number> {
  let plan: Plan = randomPlan(seed);
  if (shrinking) {
    const smaller = await inMacrotask(() => shrink(plan));
    if (smaller === null) {
      process.stdout.write(`seed ${seed} does not fail: nothing to shrink\n`);
      return 0;
    }
    plan = smaller.plan;
    process.stdout.write(
      `shrunk in ${smaller.runs} runs to ${plan.requests.length} requests and ${plan.faults.length} faults\n`,
    );
    for (const item of plan.requests) process.stdout.write(`  ${describeRequest(item)}\n`);
    for (const fault of plan.faults) process.stdout.write(`  ${describeFault(fault)}\n`);
  }
  const first = await inMacrotask(() => runPlan(plan, { tell: true }));
  const second = await inMacrotask(() => runPlan(plan));
  process.stdout.write(`${first.story.join('\n')}\n`);
  process.stdout.write(summary(first));
  if (first.hash !== second.hash) {
    process.stdout.write(`NOT DETERMINISTIC: the second run hashed to ${second.hash}\n`);
    return 2;
  }
  return first.violations.length === 0 ? 0 : 1;
}

function summary(report: RunReport): string {
  const { seed, hash, lives, completed, events, virtualMs, violations } = report;
  const lines = [
    `seed ${seed}: ${lives} lives, ${completed} completed, ${events} events, ${Math.round(virtualMs)} virtual ms`,
  ];
  for (const { rule, text, atMs } of violations) lines.push(`broken at ${atMs.toFixed(2)} ms: ${rule}: ${text}`);
  if (violations.length === 0) lines.push('nothing broke');
  lines.push(`trace hash ${hash}`, '');
  return lines.join('\n');
}
