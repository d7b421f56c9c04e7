import { capabilities } from '../../../agent/native.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { UsageError } from '../../usage-error.js';
import { gpuFacts, isAgentAvailable, nixlFacts } from '../agent-availability.js';
import { checkLine, checkText, endBench } from '../bench-end.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { Progress } from '../progress.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { formatBytes, renderTable } from '../text-table.js';
import { shapeOf } from './bounce-receiver.js';
import {
  type BounceAbortCosts,
  type BounceLaneSpec,
  type BounceSamples,
  BounceTransferRun,
  type EmptyArenaCosts,
} from './bounce-run.js';
import type { ShapeSpec } from './receiver-messages.js';
import { ReceiverProcess } from './receiver-process.js';

export interface BounceTransferOptions {
  readonly pageBytes: readonly number[];
  readonly totalBytes: number;
  readonly rounds: number;
  readonly seed: number;
  readonly memory: 'host' | 'device';
  readonly agents: readonly ('host' | 'nixl')[] | null;
  readonly gpus: readonly [number, number];
  readonly blocks: readonly number[];
  readonly slicePages: number;
  readonly arenaMb: number;
  readonly aborts: number;
  readonly json: string | null;
  readonly judge: boolean;
}

interface BounceRow {
  readonly memory: 'host' | 'device';
  readonly gpus: readonly [number, number] | null;
  /** `layers`: 64 pieces of 4 KiB in each pair of blocks, as a TP split of a model with 32 layers has. */
  readonly kind: ShapeSpec['kind'];
  readonly pageBytes: number;
  readonly bytes: number;
  readonly lane: string;
  readonly path: 'bounce';
  /** Of a gather or scatter; null: host memory. */
  readonly gatherBlocks: number | null;
  readonly gigabytesPerSecond: Percentiles | null;
  /** One contiguous copy of as many bytes as the largest row moves, in the same rounds. */
  readonly roofGigabytesPerSecond: Percentiles | null;
  readonly shareOfRoof: number;
  /** One copy command of the driver for those bytes in the same rounds, by the host's clock; null: host memory. What the bound is about. */
  readonly bareCopyGigabytesPerSecond: Percentiles | null;
  /** The same by the GPU's clock. */
  readonly bareCopyDeviceGigabytesPerSecond: Percentiles | null;
  /** null: host memory. */
  readonly shareOfBareCopy: number | null;
  readonly wrongBytes: number;
  readonly samples: BounceSamples & {
    readonly roofMs: readonly number[];
    readonly bareCopyMs: readonly number[];
    readonly bareCopyDeviceMs: readonly number[];
  };
}

const MIB = 2 ** 20;
const SHARE_OF_BARE_COPY = 0.7;
const EMPTY_ARENA_US = 100;
const ABORT_FREE_MS = 10;
const LAYERED_PIECE_BYTES = 4096;

/** `kv-transceiver bench transfer --path bounce`. @returns the exit code */
export async function bounceTransferCommand(options: BounceTransferOptions): Promise<number> {
  const lanes = await lanesOf(options);
  const gpus = options.memory === 'device' ? options.gpus : null;
  const startedAt = new Date().toISOString();
  const shapes: readonly ShapeSpec[] = [
    ...options.pageBytes.map((pieceBytes) => ({ kind: 'pages' as const, pieceBytes, totalBytes: options.totalBytes })),
    { kind: 'layers', pieceBytes: LAYERED_PIECE_BYTES, totalBytes: options.totalBytes },
  ];
  const progress = new Progress(shapes.length * (options.rounds + 1));
  const receiver = new ReceiverProcess();
  const run = new BounceTransferRun(receiver, gpus, options.totalBytes, options.slicePages);
  const rows: BounceRow[] = [];
  let emptyArena: EmptyArenaCosts | null = null;
  let aborts: BounceAbortCosts | null = null;
  let arenas: Record<string, Awaited<ReturnType<BounceTransferRun['stats']>>> = {};
  let interrupted = false;
  const stop = (): void => {
    interrupted = true;
    void receiver.end();
  };
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
  try {
    await run.open(lanes);
    for (const shape of shapes) {
      const label = shape.kind === 'layers' ? 'pieces of layers' : `${formatBytes(shape.pieceBytes)} pages`;
      progress.show(label);
      const samples = await run.measure(shape, options.rounds, options.seed, () => progress.advance(label));
      rows.push(...lanes.map((lane) => toRow(options, gpus, lane, shape, samples)));
    }
    const [first] = lanes;
    if (first !== undefined) {
      emptyArena = await run.measureEmptyArena(first.name);
      if (options.aborts > 0) aborts = await run.measureAborts(first.name, 3 * options.aborts);
    }
    arenas = Object.fromEntries(
      await Promise.all(lanes.map(async ({ name }) => [name, await run.stats(name)] as const)),
    );
  } catch (error) {
    if (!interrupted) throw error;
  } finally {
    progress.end();
    await Promise.all([run.close(), receiver.end()]);
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }
  const isJudged = options.judge && options.memory === 'device' && gpus?.[0] !== gpus?.[1];
  const checks = [
    ...rows.flatMap((row) => rowChecks(row, isJudged)),
    ...emptyChecks(emptyArena, isJudged),
    ...abortChecks(aborts, isJudged),
    ...leakChecks(arenas),
  ];
  const output: BenchOutput<BounceRow> & {
    readonly emptyArena: EmptyArenaCosts | null;
    readonly aborts: BounceAbortCosts | null;
    readonly arenas: typeof arenas;
  } = {
    schema: OUTPUT_SCHEMA,
    bench: 'transfer',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: { ...options, path: 'bounce' },
    machine: describeMachine(await nixlFacts(), gpus === null ? undefined : await gpuFacts()),
    results: rows,
    ratios: {
      shareOfRoof: Object.fromEntries(rows.map((row) => [subjectOf(row), row.shareOfRoof])),
      shareOfBareCopy: Object.fromEntries(
        rows.flatMap((row) => (row.shareOfBareCopy === null ? [] : [[subjectOf(row), row.shareOfBareCopy]])),
      ),
    },
    checks,
    interrupted,
    emptyArena,
    aborts,
    arenas,
  };
  const lines = [tableOf(rows), ...checks.map((check) => checkLine(check, checkText(check, 2)))];
  return endBench(output, lines, options);
}

async function lanesOf(options: BounceTransferOptions): Promise<readonly BounceLaneSpec[]> {
  const sizeBytes = options.arenaMb * MIB;
  const maxChunkSize = Math.min(32 * MIB, 2 ** Math.floor(Math.log2(options.arenaMb)) * (MIB / 2));
  if (options.memory === 'host') {
    const agents =
      options.agents ?? ((await isAgentAvailable('nixl')) ? (['host', 'nixl'] as const) : ['host' as const]);
    return agents.map((agent) => ({ name: `bounce-${agent}`, agent, bounce: { sizeBytes, maxChunkSize } }));
  }
  const { cuda, nixl } = await capabilities();
  if (!cuda.available) throw new UsageError(`--memory device: ${cuda.reason ?? 'no GPU'}`);
  if (!nixl.available) throw new UsageError(`--path bounce: pages on a GPU are bounced by NIXL: ${nixl.reason}`);
  const beyond = options.gpus.find((gpu) => gpu >= cuda.deviceCount);
  if (beyond !== undefined)
    throw new UsageError(`--gpus: there is no GPU ${beyond}, the driver sees ${cuda.deviceCount}`);
  return options.blocks.map((gatherBlocks) => {
    return { name: `bounce-${gatherBlocks}`, agent: 'nixl', bounce: { sizeBytes, maxChunkSize, gatherBlocks } };
  });
}

function toRow(
  { memory, totalBytes }: BounceTransferOptions,
  gpus: readonly [number, number] | null,
  { name, bounce }: BounceLaneSpec,
  spec: ShapeSpec,
  { lanes, bareCopy }: Awaited<ReturnType<BounceTransferRun['measure']>>,
): BounceRow {
  const { pairCount, bytesPerPair, pieceBytes } = shapeOf(spec);
  const bytes = pairCount * bytesPerPair;
  const speeds = (moved: number, elapsedMs: readonly number[] = []): Percentiles | null =>
    percentilesOf(elapsedMs.map((ms) => moved / 1e6 / ms));
  const lane = lanes.get(name) ?? { elapsedMs: [], releasedEarlierMs: [], wrongBytes: bytes };
  const roofMs = lanes.get('roof')?.elapsedMs ?? [];
  const speed = speeds(bytes, lane.elapsedMs);
  const roof = speeds(totalBytes, roofMs);
  const bare = speeds(totalBytes, bareCopy.hostMs);
  return {
    memory,
    gpus,
    kind: spec.kind,
    pageBytes: pieceBytes,
    bytes,
    lane: name,
    path: 'bounce',
    gatherBlocks: bounce.gatherBlocks ?? null,
    gigabytesPerSecond: speed,
    roofGigabytesPerSecond: roof,
    shareOfRoof: speed === null || roof === null ? 0 : speed.p50 / roof.p50,
    bareCopyGigabytesPerSecond: bare,
    bareCopyDeviceGigabytesPerSecond: speeds(totalBytes, bareCopy.deviceMs),
    shareOfBareCopy: speed === null || bare === null ? null : speed.p50 / bare.p50,
    wrongBytes: lane.wrongBytes,
    samples: { ...lane, roofMs, bareCopyMs: bareCopy.hostMs, bareCopyDeviceMs: bareCopy.deviceMs },
  };
}

function subjectOf({ lane, kind, pageBytes }: BounceRow): string {
  return `${lane} ${kind === 'layers' ? 'layers ' : ''}${pageBytes}`;
}

function zero(name: string, subject: string, value: number): Check {
  return { name, subject, met: value === 0, judged: true, value, bound: 0, relation: '=' };
}

function atMost(name: string, subject: string, value: number | undefined, bound: number, judged: boolean): Check[] {
  if (value === undefined) return [];
  return [{ name, subject, met: value <= bound, judged, value, bound, relation: '<=' }];
}

function rowChecks(row: BounceRow, judged: boolean): Check[] {
  const subject = subjectOf(row);
  const checks = [zero('wrongBytes', subject, row.wrongBytes)];
  const value = row.shareOfBareCopy;
  if (value === null || row.kind !== 'layers') return checks;
  const bound = SHARE_OF_BARE_COPY;
  return [...checks, { name: 'shareOfBareCopy', subject, met: value >= bound, judged, value, bound, relation: '>=' }];
}

function emptyChecks(costs: EmptyArenaCosts | null, judged: boolean): Check[] {
  if (costs === null) return [];
  return [
    ...atMost('emptyArenaUs', 'after a slice', percentilesOf(costs.busyUs)?.p50, EMPTY_ARENA_US, judged),
    ...atMost('emptyArenaUs', 'after a pause', percentilesOf(costs.idleUs)?.p50, EMPTY_ARENA_US, false),
  ];
}

function abortChecks(aborts: BounceAbortCosts | null, judged: boolean): Check[] {
  if (aborts === null) return [];
  const p99 = (values: readonly number[]): number | undefined => percentilesOf(values)?.p99;
  return [
    zero('bytesAfterAbort', 'aborts', aborts.wrongBytes),
    zero('undrainedAborts', 'aborts', aborts.undrained),
    ...atMost('abortFreeMsP99', 'slices under way', p99(aborts.freeMs), ABORT_FREE_MS, judged),
    ...atMost('abortFreeMsP99', 'slices behind an event', p99(aborts.behindEventMs), ABORT_FREE_MS, judged),
    ...atMost('abortFreeMsP99', "the receiver's pages", p99(aborts.receiverFreeMs), ABORT_FREE_MS, judged),
  ];
}

function leakChecks(arenas: Record<string, Awaited<ReturnType<BounceTransferRun['stats']>>>): Check[] {
  return Object.entries(arenas).map(([lane, { writer, receiver }]) =>
    zero('arenaBytesLeft', lane, (writer?.arenaUsedBytes ?? 0) + (receiver?.arenaUsedBytes ?? 0)),
  );
}

function tableOf(rows: readonly BounceRow[]): string {
  return renderTable(
    [
      'page',
      'moved',
      'lane',
      'GB/s',
      'bare GB/s',
      'share',
      'own roof GB/s',
      'share',
      'pages free before the end, us',
      'wrong bytes',
    ],
    rows.map((row) => [
      `${row.kind === 'layers' ? 'layers ' : ''}${formatBytes(row.pageBytes)}`,
      formatBytes(row.bytes),
      row.lane,
      row.gigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.bareCopyGigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.shareOfBareCopy?.toFixed(3) ?? '-',
      row.roofGigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.shareOfRoof.toFixed(3),
      ((percentilesOf(row.samples.releasedEarlierMs)?.p50 ?? 0) * 1000).toFixed(0),
      String(row.wrongBytes),
    ]),
  );
}
