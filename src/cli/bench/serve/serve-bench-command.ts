import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readOptions } from '../../options.js';
import { requireAgent } from '../agent-availability.js';
import { leaksBetween, mib, type ProcessUse, processUses } from './process-use.js';
import { SERVE_BENCH_OPTIONS } from './serve-bench-options.js';
import { ServedProcess } from './served-process.js';
import { type SoakQuestion, soakQuestions } from './soak-questions.js';
import { type SoakOptions, type SoakResult, soak } from './soak-run.js';

const ENGINE = { max_model_tokens: 512, tokens_per_block: 16, cache_tokens: 32_768 };
/** Requests that make every process compile and allocate what it needs, before anything is compared. */
const WARM_UP_S = 3;
/** Until nothing runs any more after the last client has left. */
const SETTLE_LIMIT_MS = 60_000;
const REPLACEMENT_WORK_LIMIT_MS = 60_000;

/** `kv-transceiver bench serve`: a server under many clients, with workers killed. @returns the exit code */
export async function serveBenchCommand(args: readonly string[]): Promise<number> {
  const { clients, seconds, workers, leave, seed, noKill } = readOptions(SERVE_BENCH_OPTIONS, args);
  await requireAgent('--agent', 'host');
  const questions = await soakQuestions(seed, ENGINE, 'kvt-tiny');
  const folder = mkdtempSync(join(tmpdir(), 'kvt-serve-'));
  let server: ServedProcess | null = null;
  // A server goes on when its parent is gone.
  const interrupt = (): void => {
    server?.kill();
    rmSync(folder, { recursive: true });
    process.exit(130);
  };
  process.once('SIGINT', interrupt);
  process.once('SIGTERM', interrupt);
  try {
    const file = join(folder, 'serve.yaml');
    writeFileSync(file, configOf(workers));
    server = await ServedProcess.start(file, ['--max-live', String(clients), '--max-queue', String(clients)]);
    const running = server;
    await soak(running, questions, { clients, seconds: Math.min(WARM_UP_S, seconds), leave, seed, kill: false });
    const before = await settled(running);
    const result = await soak(running, questions, { clients, seconds, leave, seed: seed + 1, kill: !noKill });
    const more = await untilReplacementsWork(running, questions, { clients, seed, leave: 0 }, result);
    const after = await settled(running);
    const pids = [...(await running.workers('context')), ...(await running.workers('generation'))].map(
      ({ pid }) => pid,
    );
    const exit = await running.stop();
    const problems = [
      ...more.wrong.slice(0, 5),
      ...result.wrong.slice(0, 5),
      ...(result.wrong.length > 5 ? [`${result.wrong.length - 5} more wrong answers`] : []),
      ...(result.right === 0 ? ['no request was answered'] : []),
      ...leaksBetween(before, after),
      ...result.killed.flatMap((one) => idleReplacement(one, after)),
      ...(exit === 0 ? [] : [`serve ended with ${exit} after SIGTERM`]),
      ...pids.filter(isAlive).map((pid) => `worker process ${pid} outlived its server`),
    ];
    process.stdout.write(`${lineOf({ clients, seconds }, result, before, after)}\n`);
    for (const problem of problems) process.stderr.write(`NOT MET  ${problem}\n`);
    return problems.length === 0 ? 0 : 1;
  } finally {
    process.off('SIGINT', interrupt);
    process.off('SIGTERM', interrupt);
    server?.kill();
    rmSync(folder, { recursive: true });
  }
}

function configOf(workers: number): string {
  return JSON.stringify({
    schedule_style: 'generation_first',
    // Many small chunks: most requests are cut in the middle by something.
    max_num_tokens: 256,
    engine: ENGINE,
    cache_transceiver_config: { backend: 'HOST' },
    context_servers: {
      num_instances: workers,
      router: 'least_loaded',
      cache_transceiver_config: { enable_pipelined_transfer: true },
    },
    generation_servers: { num_instances: workers, router: 'least_loaded' },
  });
}

/** What the processes hold once nothing runs; the newest look when that never comes. */
async function settled(server: ServedProcess): Promise<readonly ProcessUse[]> {
  const limitMs = performance.now() + SETTLE_LIMIT_MS;
  for (;;) {
    const uses = processUses(await server.metrics());
    if (uses.every(({ held }) => held === 0) || performance.now() > limitMs) return uses;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/**
 * A replacement that was slow to start must still be asked: clients go on until each has computed something.
 * @returns what those clients got
 */
async function untilReplacementsWork(
  server: ServedProcess,
  questions: readonly SoakQuestion[],
  options: Pick<SoakOptions, 'clients' | 'seed' | 'leave'>,
  { killed }: SoakResult,
): Promise<{ readonly wrong: readonly string[] }> {
  const limitMs = performance.now() + REPLACEMENT_WORK_LIMIT_MS;
  const wrong: string[] = [];
  for (let round = 2; performance.now() < limitMs; round++) {
    const uses = processUses(await server.metrics());
    if (killed.every((one) => idleReplacement(one, uses).length === 0)) break;
    const more = { ...options, seconds: 0.5, seed: options.seed + round, kill: false };
    wrong.push(...(await soak(server, questions, more)).wrong);
  }
  return { wrong };
}

function idleReplacement(
  { name, replacedAfterMs }: SoakResult['killed'][number],
  after: readonly ProcessUse[],
): string[] {
  if (replacedAfterMs === null) return [`${name} was killed and not replaced`];
  const steps = after.find(({ process }) => process === name)?.steps ?? 0;
  return steps > 0 ? [] : [`the replacement of ${name} took no requests`];
}

function lineOf(
  { clients, seconds }: { readonly clients: number; readonly seconds: number },
  { right, tokens, left, errors, wrong, killed }: SoakResult,
  before: readonly ProcessUse[],
  after: readonly ProcessUse[],
): string {
  const failed = [...errors.values()].reduce((sum, count) => sum + count, 0);
  const codes = [...errors].map(([code, count]) => `${count} x ${code}`).join(', ');
  const kills = killed.map(({ name, replacedAfterMs }) => {
    const steps = after.find(({ process }) => process === name)?.steps ?? 0;
    return `${name} killed, replaced in ${replacedAfterMs === null ? 'no time' : `${Math.round(replacedAfterMs)} ms`}, ${steps} steps since`;
  });
  const total = (uses: readonly ProcessUse[], what: 'fds' | 'heapBytes'): number =>
    uses.reduce((sum, use) => sum + use[what], 0);
  return [
    `serve: ${clients} clients, ${seconds} s`,
    `${right + left + failed + wrong.length} requests`,
    `${right} right (${tokens} tokens)`,
    `${left} left early`,
    `${failed} clear errors${failed === 0 ? '' : ` (${codes})`}`,
    `${wrong.length} wrong`,
    ...kills,
    `open files ${total(before, 'fds')} -> ${total(after, 'fds')}`,
    `heap ${mib(total(before, 'heapBytes'))} -> ${mib(total(after, 'heapBytes'))} MiB`,
  ].join(' | ');
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    // Nobody has this id.
    return false;
  }
}
