import { capabilities } from '../../../agent/native.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { gpuFacts, isAgentAvailable, nixlFacts } from '../agent-availability.js';
import { checkLine, checkText, endBench } from '../bench-end.js';
import { checkJsonTarget } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { Progress } from '../progress.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { renderTable } from '../text-table.js';
import type { DeviceLaneSpec } from '../transfer/device-transfer-run.js';
import { ReceiverProcess } from '../transfer/receiver-process.js';
import { INTERFERENCE_OPTIONS, type InterferenceOptions } from './interference-options.js';
import { InterferenceRun, type PrefillSample, type TransferLoad } from './interference-run.js';

const SLOW_DOWN = 0.02;

interface Variant {
  readonly name: string;
  readonly lane: string;
  readonly path: string;
  readonly load: TransferLoad;
}

interface PairedSample extends PrefillSample {
  /** The same prefill alone, mean of the one before and the one after. */
  readonly aloneMs: number;
}

interface InterferenceRow {
  readonly variant: string;
  readonly path: string;
  readonly load: TransferLoad;
  readonly model: string;
  readonly chunkTokens: number;
  readonly chunks: number;
  readonly prefillMs: Percentiles | null;
  readonly aloneMs: Percentiles | null;
  /** Over the prefills alone around it, minus 1. */
  readonly slowDown: Percentiles | null;
  readonly gigabytesPerSecond: number;
  readonly wrongBytes: number;
  readonly samples: readonly PairedSample[];
}

/** `kv-transceiver bench interference`. @returns the exit code */
export async function interferenceCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(INTERFERENCE_OPTIONS, args);
  checkJsonTarget(options.json);
  await checkGpus(options);
  const lanes: DeviceLaneSpec[] = options.blocks.map((copyBlocks) => {
    return { name: `p2p-${copyBlocks}`, agent: 'host', path: 'p2p', copyBlocks };
  });
  if (await isAgentAvailable('nixl')) lanes.push({ name: 'rdma', agent: 'nixl', path: 'rdma' });
  const variants: Variant[] = lanes.flatMap(({ name, path }) =>
    options.loads.map((load) => ({ name: `${name} ${load}`, lane: name, path, load })),
  );

  const startedAt = new Date().toISOString();
  const progress = new Progress((options.rounds + 1) * variants.length);
  const receiver = new ReceiverProcess();
  const run = new InterferenceRun(options, receiver);
  const samples = new Map<string, PairedSample[]>(variants.map(({ name }) => [name, []]));
  const wrong = new Map<string, number>();
  let library = { path: '', version: 0 };
  let interrupted = false;
  const stop = (): void => {
    interrupted = true;
    void receiver.end();
  };
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
  try {
    progress.show('opening');
    library = await run.open(lanes);
    for (let round = -1; round < options.rounds; round++) {
      for (const { name, lane, load } of variants) {
        // Before and after, so that what drifts over seconds (clocks, heat) counts on both sides.
        const before = await run.prefill(null, load);
        const beside = await run.prefill(lane, load);
        const after = await run.prefill(null, load);
        const aloneMs = (before.elapsedMs + after.elapsedMs) / 2;
        if (round >= 0) samples.get(name)?.push({ ...beside, aloneMs });
        progress.advance(name);
      }
    }
    for (const { name } of lanes) wrong.set(name, await run.wrongBytes(name));
  } catch (error) {
    if (!interrupted) throw error;
  } finally {
    progress.end();
    await Promise.all([run.close(), receiver.end()]);
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }

  const rows = variants.map((variant) => toRow(options, variant, samples, wrong));
  const checks = checksOf(rows, options.judge);
  const output: BenchOutput<InterferenceRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'interference',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: { ...options, bytesPerChunk: run.bytesPerChunk, cublas: library },
    machine: describeMachine(await nixlFacts(), await gpuFacts()),
    results: rows,
    ratios: {
      slowDown: Object.fromEntries(rows.flatMap((row) => (row.slowDown ? [[row.variant, row.slowDown.p50]] : []))),
    },
    checks,
    interrupted,
  };
  const lines = [tableOf(rows), ...checks.map((check) => checkLine(check, checkText(check, 4)))];
  return endBench(output, lines, options);
}

async function checkGpus({ gpus }: InterferenceOptions): Promise<void> {
  const { cuda } = await capabilities();
  if (!cuda.available) throw new UsageError(`bench interference needs a GPU: ${cuda.reason ?? 'none was found'}`);
  const beyond = gpus.find((gpu) => gpu >= cuda.deviceCount);
  if (beyond !== undefined) {
    throw new UsageError(`--gpus: there is no GPU ${beyond}, the driver sees ${cuda.deviceCount}`);
  }
}

function toRow(
  { model, chunk, chunks }: InterferenceOptions,
  { name, lane, path, load }: Variant,
  samples: ReadonlyMap<string, readonly PairedSample[]>,
  wrong: ReadonlyMap<string, number>,
): InterferenceRow {
  const own = samples.get(name) ?? [];
  const elapsedMs = own.reduce((sum, sample) => sum + sample.elapsedMs, 0);
  const bytes = own.reduce((sum, sample) => sum + sample.bytesMoved, 0);
  return {
    variant: name,
    path,
    load,
    model,
    chunkTokens: chunk,
    chunks,
    prefillMs: percentilesOf(own.map((sample) => sample.elapsedMs)),
    aloneMs: percentilesOf(own.map((sample) => sample.aloneMs)),
    slowDown: percentilesOf(own.map((sample) => sample.elapsedMs / sample.aloneMs - 1)),
    gigabytesPerSecond: elapsedMs === 0 ? 0 : bytes / 1e6 / elapsedMs,
    wrongBytes: wrong.get(lane) ?? 0,
    samples: own,
  };
}

/** The bound is about what prefill itself hands over; a path that is saturated all the time is told, not judged. */
function checksOf(rows: readonly InterferenceRow[], judged: boolean): readonly Check[] {
  return rows.flatMap((row): Check[] => {
    if (row.slowDown === null) return [];
    const { wrongBytes, variant } = row;
    const checks: Check[] = [
      {
        name: 'wrongBytes',
        subject: variant,
        met: wrongBytes === 0,
        judged: true,
        value: wrongBytes,
        bound: 0,
        relation: '=',
      },
    ];
    const value = row.slowDown.p50;
    checks.push({
      name: 'slowDown',
      subject: variant,
      met: value <= SLOW_DOWN,
      judged: judged && row.load === 'own',
      value,
      bound: SLOW_DOWN,
      relation: '<=',
    });
    return checks;
  });
}

function tableOf(rows: readonly InterferenceRow[]): string {
  return renderTable(
    ['variant', 'prefill ms', 'alone ms', 'slow-down', 'moved GB/s', 'wrong bytes'],
    rows.map((row) => [
      row.variant,
      row.prefillMs?.p50.toFixed(2) ?? '-',
      row.aloneMs?.p50.toFixed(2) ?? '-',
      row.slowDown === null ? '-' : `${(100 * row.slowDown.p50).toFixed(2)} %`,
      row.gigabytesPerSecond.toFixed(1),
      String(row.wrongBytes),
    ]),
  );
}
