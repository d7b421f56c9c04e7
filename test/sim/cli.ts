import { inMacrotask } from './core/microtasks.js';
import { hunt } from './hunt.js';
import { randomPlan } from './random-plan.js';
import { runPlan } from './run-plan.js';

export async function main(args: readonly string[]): Promise<number> {
  const [what, value] = args;
  const n = Number(value);
  if (what === '--seed') {
    const r = await inMacrotask(() => runPlan(randomPlan(n), { tell: true }));
    console.log(r.story.join('\n'));
    console.log(r.violations, r.hash, r.lives, r.completed, r.virtualMs, r.events, r.counters);
    return r.violations.length > 0 ? 1 : 0;
  }
  const t = process.hrtime.bigint();
  const r = await inMacrotask(() => hunt(Number(args[2] ?? 1), n));
  const s = Number(process.hrtime.bigint() - t) / 1e9;
  console.log(r.lives, r.completed, r.seeds, s.toFixed(1), (r.lives / s).toFixed(0), r.events / r.lives, r.virtualMs / r.seeds);
  if (r.failure) console.log(r.failure.seed, r.failure.violations.slice(0, 3));
  return 0;
}
