import { SystemClock } from '../../../clock.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { gpuFacts, nixlFacts } from '../agent-availability.js';
import { endBench, sayTo } from '../bench-end.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, OUTPUT_SCHEMA, type TakenPath, type TtftRow } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import { Progress } from '../progress.js';
import { ExpectedTransfer } from '../shape/expected-transfer.js';
import { describeShape, rankCount } from '../shape/side-shape.js';
import { byteChecks, figureChecks, TAIL_OVER_LAST_SLICE, TAIL_OVER_LAST_SLICE_ON_GPU } from './checks.js';
import { earlyPrefixChecks } from './early-prefix-checks.js';
import { runGroup } from './group-runner.js';
import { faultOf } from './interrupted-error.js';
import { checkLines, headlines, ttftTable } from './report-text.js';
import { type RowFacts, ratios, SampleTable } from './rows.js';
import { asUsageError } from './start-failure.js';
import { TtftCluster } from './ttft-cluster.js';
import { describeRun, linkOf, planRun, sideSettings, workerSettings } from './ttft-plan.js';
import { warmUp } from './warm-up.js';

const STOP_DEADLINE_MS = 5_000;
/**
 * After Ctrl-C both processes are gone within two seconds, after the loss of one the other within five. Most of that belongs to the kernel,
 * which takes a third of a second per GiB of pool to give 4 KiB pages back, so little is left to wait for a drain that nobody needs.
 */
const EARLY_STOP_DEADLINE_MS = 300;

/** `kv-transceiver bench ttft`. @returns the exit code */
export async function ttftCommand(args: readonly string[]): Promise<number> {
  const plan = await planRun(args);
  const { options, concurrency, shapes, groups } = plan;
  const say = sayTo(options.json);
  const startedAt = new Date().toISOString();
  const linkGbps = linkOf(options);
  const clock = new SystemClock();
  const samples = new SampleTable();
  const progress = new Progress(groups.reduce((total, group) => total + group.requests.length, 0));
  const cluster = new TtftCluster(new ExpectedTransfer(shapes.context, shapes.generation, presetNamed(options.model)));

  const interrupt = (): void => cluster.interrupt();
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, interrupt);

  let path = '';
  let paths: readonly TakenPath[] = [];
  let failure: unknown = null;
  try {
    say(describeRun(plan, linkGbps));
    path = await cluster.start(workerSettings(plan, 'context'), workerSettings(plan, 'generation'));
    progress.show('handshake');
    await warmUp(cluster, plan, options.warmUp);
    cluster.startRun();
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
    paths = (await cluster.describe()).context?.paths ?? [];
  } catch (error) {
    failure = error;
  } finally {
    progress.end();
    await cluster.stop(failure === null ? STOP_DEADLINE_MS : EARLY_STOP_DEADLINE_MS);
    for (const signal of signals) process.off(signal, interrupt);
  }
  const fault = faultOf(failure);
  if (fault !== null && samples.size === 0) throw asUsageError(fault, options);

  const facts: RowFacts = {
    model: options.model,
    contextShape: describeShape(shapes.context),
    contextRanks: rankCount(shapes.context),
    generationShape: describeShape(shapes.generation),
    generationRanks: rankCount(shapes.generation),
    chunkTokens: options.chunk,
    concurrency,
    agent: options.agent,
    path,
  };
  const rows = samples.rows(facts);
  const tailBound = options.engine === 'gemm' ? TAIL_OVER_LAST_SLICE_ON_GPU : TAIL_OVER_LAST_SLICE;
  const judged = options.judge && options.agent === 'host';
  const checks = [
    ...byteChecks(rows),
    ...figureChecks(rows, judged, tailBound),
    ...earlyPrefixChecks(rows, judged, tailBound),
  ];
  const output: BenchOutput<TtftRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'ttft',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: {
      ...options,
      linkGbps,
      concurrency,
      context: sideSettings(shapes.context, plan.pools.context),
      generation: sideSettings(shapes.generation, plan.pools.generation),
    },
    machine: describeMachine(await nixlFacts(), await gpuFacts()),
    results: rows,
    ratios: ratios(rows),
    checks,
    paths,
    interrupted: failure !== null,
  };
  const lines = ['', ttftTable(rows), '', ...headlines(rows), ...checkLines(checks)];
  return endBench(output, lines, options, fault);
}
