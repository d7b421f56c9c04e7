import { SystemClock } from '../../../clock.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { nixlFacts, requireAgent } from '../agent-availability.js';
import { checkJsonTarget, writeJson } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, OUTPUT_SCHEMA, type TtftRow } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import { bytesPerToken } from '../presets/model-preset.js';
import { Progress } from '../progress.js';
import { readTrace } from '../request-trace.js';
import { formatBytes } from '../text-table.js';
import { byteChecks, failedChecks, figureChecks } from './checks.js';
import { runGroup } from './group-runner.js';
import { InterruptedError } from './interrupted-error.js';
import { slotCountFor } from './pool-size.js';
import { checkLines, headlines, ttftTable } from './report-text.js';
import { type RowFacts, ratios, SampleTable } from './rows.js';
import { asUsageError } from './start-failure.js';
import { TtftCluster } from './ttft-cluster.js';
import { checkTtftOptions, TTFT_OPTIONS, type TtftOptions, withQuickDefaults } from './ttft-options.js';
import { planClosedLoop, plannedRequest, planTrace, type RequestGroup } from './workload.js';

const DEFAULT_TRACE_CONCURRENCY = 2;
const STOP_DEADLINE_MS = 5_000;
/**
 * After Ctrl-C both processes are gone within two seconds, after the loss of one the other within five. Most of that belongs to the kernel,
 * which takes a third of a second per GiB of pool to give 4 KiB pages back, so little is left to wait for a drain that nobody needs.
 */
const EARLY_STOP_DEADLINE_MS = 300;

interface Plan {
  readonly options: TtftOptions;
  readonly concurrency: number;
  readonly slotCount: number;
  readonly groups: readonly RequestGroup[];
}

/** Everything that can be wrong with the arguments is found here, before any process starts. */
async function planRun(args: readonly string[]): Promise<Plan> {
  const typed = withQuickDefaults(args);
  const options = readOptions(TTFT_OPTIONS, typed);
  checkTtftOptions(options, args);
  checkJsonTarget(options.json);
  const concurrency = options.concurrency ?? (options.trace === null ? 1 : DEFAULT_TRACE_CONCURRENCY);
  const groups =
    options.trace === null
      ? planClosedLoop(options, concurrency)
      : planTrace(options, readTrace(options.trace, options.requests));
  if (groups.length === 0) throw new UsageError('--variants: nothing is left to run; choose another variant');
  const slotCount = slotCountFor(options, concurrency, presetNamed(options.model), groups);
  await requireAgent('--agent', options.agent);
  return { options, concurrency, slotCount, groups };
}

/** `kv-transceiver bench ttft`. @returns the exit code */
export async function ttftCommand(args: readonly string[]): Promise<number> {
  const plan = await planRun(args);
  const { options, concurrency, groups } = plan;
  const say = (line: string): void => void (options.json === '-' ? process.stderr : process.stdout).write(`${line}\n`);
  const startedAt = new Date().toISOString();
  const linkGbps = options.agent === 'host' ? options.linkGbps : null;
  const clock = new SystemClock();
  const samples = new SampleTable();
  const progress = new Progress(groups.reduce((total, group) => total + group.requests.length, 0));
  const cluster = new TtftCluster();

  const interrupt = (): void => cluster.interrupt();
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, interrupt);

  let path = '';
  let failure: unknown = null;
  try {
    say(describeRun(plan, linkGbps));
    path = await cluster.start({
      model: options.model,
      agent: options.agent,
      linkGbps,
      tokensPerBlock: options.blockSize,
      chunkTokens: options.chunk,
      slotCount: plan.slotCount,
      poolLayout: options.poolLayout,
      tflops: options.tflops,
      concurrency,
      listenPort: options.listenPort ?? 0,
      seed: options.seed,
    });
    progress.show('handshake');
    await warmUp(cluster, options, plan);
    for (const group of groups) {
      progress.show(group.label);
      await runGroup(
        cluster,
        group,
        concurrency,
        () => clock.now(),
        (planned, sample) => {
          const promptTokens = options.trace === null ? planned.prompt.tokenCount : null;
          samples.add({ variant: planned.variant, promptTokens, prefixHit: planned.prefixHit }, sample);
          progress.advance(group.label);
        },
      );
    }
  } catch (error) {
    failure = error;
  } finally {
    progress.end();
    await cluster.stop(failure === null ? STOP_DEADLINE_MS : EARLY_STOP_DEADLINE_MS);
    for (const signal of signals) process.off(signal, interrupt);
  }
  if (failure !== null && !(failure instanceof InterruptedError) && samples.size === 0)
    throw asUsageError(failure, options);

  const facts: RowFacts = { model: options.model, chunkTokens: options.chunk, concurrency, agent: options.agent, path };
  const rows = samples.rows(facts);
  const checks = [...byteChecks(rows), ...figureChecks(rows, options.judge && options.agent === 'host')];
  const output: BenchOutput<TtftRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'ttft',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: { ...options, linkGbps, concurrency, slotCount: plan.slotCount },
    machine: describeMachine(await nixlFacts()),
    results: rows,
    ratios: ratios(rows),
    checks,
    interrupted: failure !== null,
  };
  if (rows.length > 0) {
    for (const line of ['', ttftTable(rows), '', ...headlines(rows), ...checkLines(checks)]) say(line);
  }
  writeJson(options.json, output);
  if (failure instanceof InterruptedError) {
    say(
      rows.length > 0
        ? 'interrupted: the figures above are what was measured until then'
        : 'interrupted before anything was measured',
    );
    return 130;
  }
  if (failure instanceof Error) throw failure;
  return failedChecks(checks).length === 0 ? 0 : 1;
}

/** The first request pays for the handshake and for cold code; it is not reported. */
async function warmUp(cluster: TtftCluster, options: TtftOptions, plan: Plan): Promise<void> {
  const tokens = Math.min(2 * options.blockSize, plan.slotCount * options.blockSize);
  const warm = { ...plannedRequest(options, 'pipelined', tokens, 0, 2 ** 31), contextWarmTokens: 0 };
  await cluster.measure(await cluster.prepare(warm));
}

function describeRun({ options, groups, slotCount, concurrency }: Plan, linkGbps: number | null): string {
  const preset = presetNamed(options.model);
  const perToken = bytesPerToken(preset);
  const poolBytes = slotCount * options.blockSize * perToken;
  const requests = groups.reduce((total, group) => total + group.requests.length, 0);
  const speed = options.agent === 'host' ? (linkGbps === null ? ', not paced' : `, paced to ${linkGbps} Gbit/s`) : '';
  return (
    `${options.model} (${formatBytes(perToken)} a token), agent ${options.agent}${speed}, chunks of ${options.chunk} tokens, ` +
    `prefill modelled at ${options.tflops} TFLOP/s; ${requests} requests, ${concurrency} at a time, two pools of ${formatBytes(poolBytes)}`
  );
}
