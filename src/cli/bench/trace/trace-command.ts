import { SystemClock } from '../../../clock.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { gpuFacts, nixlFacts } from '../agent-availability.js';
import { endBench, sayTo } from '../bench-end.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, OUTPUT_SCHEMA, type TakenPath } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import { Progress } from '../progress.js';
import { ExpectedTransfer } from '../shape/expected-transfer.js';
import { describeShape, rankCount } from '../shape/side-shape.js';
import { byteChecks } from '../ttft/checks.js';
import { faultOf } from '../ttft/interrupted-error.js';
import { checkLines } from '../ttft/report-text.js';
import { SampleTable } from '../ttft/rows.js';
import { asUsageError } from '../ttft/start-failure.js';
import { TtftCluster } from '../ttft/ttft-cluster.js';
import { linkOf, sideSettings } from '../ttft/ttft-plan.js';
import { warmUp } from '../ttft/warm-up.js';
import { LoadRunner, loadClock } from './load-runner.js';
import { describeTraceRun, planTraceRun, type TracePlan, traceWorkerSettings, turnsOf } from './trace-plan.js';
import { type TraceRow, traceRow } from './trace-row.js';
import { traceHeadlines, traceRatios, traceTable } from './trace-text.js';

const STOP_DEADLINE_MS = 5_000;
/** See bench ttft: the kernel needs most of the two seconds after Ctrl-C to take the pools back. */
const EARLY_STOP_DEADLINE_MS = 300;
/** From submission: under load nearly all of it is waiting, in the servers' own lines. */
const REQUEST_DEADLINE_MS = 600_000;

/** `kv-transceiver bench trace`. @returns the exit code */
export async function traceCommand(args: readonly string[]): Promise<number> {
  const plan = await planTraceRun(args);
  const { options, groups, shapes } = plan;
  const say = sayTo(options.json);
  const startedAt = new Date().toISOString();
  const clock = new SystemClock();
  const samples = new SampleTable();
  const progress = new Progress(groups.reduce((total, group) => total + group.requests.length, 0));
  const expected = new ExpectedTransfer(shapes.context, shapes.generation, presetNamed(options.model));
  const cluster = new TtftCluster(expected, REQUEST_DEADLINE_MS);

  const interrupt = (): void => cluster.interrupt();
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, interrupt);

  let path = '';
  let paths: readonly TakenPath[] = [];
  let failure: unknown = null;
  try {
    say(describeTraceRun(plan, linkOf(options)));
    path = await cluster.start(traceWorkerSettings(plan, 'context'), traceWorkerSettings(plan, 'generation'));
    progress.show('handshake');
    await warmUp(cluster, plan, options.warmUp);
    cluster.startRun();
    for (const { label, requests, standing } of groups) {
      progress.show(label);
      if (standing !== undefined) await cluster.restore(standing);
      const runner = new LoadRunner(
        cluster,
        options,
        loadClock(() => clock.now()),
        ({ variant }, sample) => {
          samples.add({ variant, promptTokens: null, prefixHit: 0 }, sample);
          progress.advance(label);
        },
      );
      await runner.run(requests);
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

  const rows = rowsOf(plan, samples, path);
  const output: BenchOutput<TraceRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'trace',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: settingsOf(plan),
    machine: describeMachine(await nixlFacts(), await gpuFacts()),
    results: rows,
    ratios: traceRatios(rows),
    checks: byteChecks(rows),
    paths,
    interrupted: failure !== null,
  };
  const lines = ['', traceTable(rows), '', ...traceHeadlines(rows), ...checkLines(output.checks)];
  return endBench(output, lines, options, fault);
}

function rowsOf({ options, shapes, concurrency }: TracePlan, samples: SampleTable, path: string): readonly TraceRow[] {
  const rows = samples.rows({
    model: options.model,
    contextShape: describeShape(shapes.context),
    contextRanks: rankCount(shapes.context),
    generationShape: describeShape(shapes.generation),
    generationRanks: rankCount(shapes.generation),
    chunkTokens: options.chunk,
    concurrency,
    agent: options.agent,
    path,
  });
  return rows.map((row) => traceRow(row, { ttftMs: options.sloTtftMs, tbtMs: options.sloTbtMs }));
}

function settingsOf(plan: TracePlan): Readonly<Record<string, unknown>> {
  const { options, shapes, pools, traceName, trace } = plan;
  return {
    ...options,
    rounds: turnsOf(plan).rounds,
    trace: traceName,
    linkGbps: linkOf(options),
    tokensPerHashId: trace.blockTokens,
    arrivalsOverMs: trace.requests.at(-1)?.arrivalMs ?? 0,
    context: sideSettings(shapes.context, pools.context),
    generation: sideSettings(shapes.generation, pools.generation),
  };
}
