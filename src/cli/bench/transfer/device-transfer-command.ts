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
import {
  type AbortCosts,
  type DeviceLaneSpec,
  DeviceTransferRun,
  type LaneSamples,
  type SliceCosts,
} from './device-transfer-run.js';
import { type PageShape, pageShape, splitShape } from './page-shape.js';
import { ReceiverProcess } from './receiver-process.js';

export interface DeviceTransferOptions {
  readonly pageBytes: readonly number[];
  readonly totalBytes: number;
  readonly rounds: number;
  readonly seed: number;
  readonly gpus: readonly [number, number];
  readonly blocks: readonly number[];
  readonly slicePages: number;
  readonly aborts: number;
  readonly json: string | null;
  readonly judge: boolean;
}

interface DeviceTransferRow {
  readonly memory: 'device';
  readonly gpus: readonly [number, number];
  /** `split`: each page is a receiver's share of a larger one. */
  readonly kind: PageShape['kind'];
  /** Of what lies together on both sides. */
  readonly pageBytes: number;
  readonly bytes: number;
  readonly lane: string;
  readonly path: 'p2p' | 'rdma';
  readonly copyBlocks: number | null;
  readonly gigabytesPerSecond: Percentiles | null;
  /** One contiguous copy of the same bytes over the p2p path in the same rounds. */
  readonly roofGigabytesPerSecond: Percentiles | null;
  readonly shareOfRoof: number;
  /** One copy command of the driver for the same bytes in the same rounds, by the host's clock: what the bounds are about. */
  readonly bareCopyGigabytesPerSecond: Percentiles | null;
  /** The same by the GPU's clock. */
  readonly bareCopyDeviceGigabytesPerSecond: Percentiles | null;
  readonly shareOfBareCopy: number;
  readonly wrongBytes: number;
  /** Contiguous, by the same agent. */
  readonly ownContiguousGigabytesPerSecond: Percentiles | null;
  /** By a bare loop over NIXL; null where it was not measured. */
  readonly bareLoopGigabytesPerSecond: Percentiles | null;
  readonly samples: LaneSamples;
}

/** `kv-transceiver bench transfer --memory device`. @returns the exit code */
export async function deviceTransferCommand(options: DeviceTransferOptions): Promise<number> {
  const { cuda } = await capabilities();
  if (!cuda.available) throw new UsageError(`--memory device: ${cuda.reason ?? 'no GPU'}`);
  const beyond = options.gpus.find((gpu) => gpu >= cuda.deviceCount);
  if (beyond !== undefined)
    throw new UsageError(`--gpus: there is no GPU ${beyond}, the driver sees ${cuda.deviceCount}`);
  const lanes: DeviceLaneSpec[] = options.blocks.map((copyBlocks) => {
    return { name: `p2p-${copyBlocks}`, agent: 'host', path: 'p2p', copyBlocks };
  });
  if (await isAgentAvailable('nixl')) lanes.push({ name: 'rdma', agent: 'nixl', path: 'rdma' });

  const startedAt = new Date().toISOString();
  const progress = new Progress((options.pageBytes.length + 1) * (options.rounds + 1));
  const receiver = new ReceiverProcess();
  const run = new DeviceTransferRun(receiver, options.gpus, options.totalBytes, options.slicePages);
  const rows: DeviceTransferRow[] = [];
  let slices: SliceCosts | null = null;
  let aborts: AbortCosts | null = null;
  let longRunAborts: AbortCosts | null = null;
  let interrupted = false;
  const stop = (): void => {
    interrupted = true;
    void receiver.end();
  };
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
  try {
    await run.open(lanes);
    const shapes = options.pageBytes.map((pageBytes) => pageShape(pageBytes, options.totalBytes));
    for (const shape of [...shapes, splitShape(options.totalBytes)]) {
      const label = shape.kind === 'split' ? 'pieces of pages' : `${formatBytes(shape.pieceBytes)} pages`;
      progress.show(label);
      const samples = await run.measure(shape, options.rounds, options.seed, () => progress.advance(label));
      rows.push(...toRows(options, lanes, shape, samples));
    }
    if (lanes[0] !== undefined) {
      slices = await run.measureSlices(lanes[0].name);
      if (options.aborts > 0) {
        aborts = await run.measureAborts(lanes[0].name, 'pages', 2 * options.aborts);
        longRunAborts = await run.measureAborts(lanes[0].name, 'long-runs', 2 * options.aborts);
      }
    }
  } catch (error) {
    if (!interrupted) throw error;
  } finally {
    progress.end();
    await Promise.all([run.close(), receiver.end()]);
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }

  const costs = { submitUs: p50(slices?.submitUs), postingUs: p50(slices?.postingUs), eventUs: p50(slices?.eventToPageUs) }; // biome-ignore format: one line
  const checks = [
    ...checksOf(rows, costs, options.judge),
    ...[aborts, longRunAborts].flatMap((costs) => abortChecks(costs, options.judge)),
  ];
  const output: BenchOutput<DeviceTransferRow> & {
    readonly slices: SliceCosts | null;
    readonly aborts: AbortCosts | null;
    readonly longRunAborts: AbortCosts | null;
  } = {
    schema: OUTPUT_SCHEMA,
    bench: 'transfer',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: { ...options },
    machine: describeMachine(await nixlFacts(), await gpuFacts()),
    results: rows,
    ratios: {
      shareOfRoof: Object.fromEntries(rows.map((row) => [subjectOf(row), row.shareOfRoof])),
      shareOfBareCopy: Object.fromEntries(rows.map((row) => [subjectOf(row), row.shareOfBareCopy])),
      p2pOverRdma: overRdma(rows),
      nixlOverBareLoop: overBareLoop(rows),
      sliceUs: Object.fromEntries(
        Object.entries(costs).filter((entry): entry is [string, number] => entry[1] !== null),
      ),
    },
    checks,
    interrupted,
    slices,
    aborts,
    longRunAborts,
  };
  const lines = [tableOf(rows), ...checks.map((check) => checkLine(check, checkText(check, 2)))];
  return endBench(output, lines, options);
}

function toRows(
  { gpus }: DeviceTransferOptions,
  lanes: readonly DeviceLaneSpec[],
  { kind, pieceBytes, bytesPerPair, pairCount }: PageShape,
  samples: ReadonlyMap<string, LaneSamples>,
): DeviceTransferRow[] {
  const bytes = pairCount * bytesPerPair;
  const speeds = (elapsedMs: readonly number[]): Percentiles | null =>
    percentilesOf(elapsedMs.map((ms) => bytes / 1e6 / ms));
  const roof = speeds([...samples].flatMap(([name, lane]) => (name === 'rdma' ? [] : lane.contiguousMs)));
  const bare = speeds([...samples.values()].flatMap(({ bareCopyMs }) => bareCopyMs));
  const bareDevice = speeds([...samples.values()].flatMap(({ bareCopyDeviceMs }) => bareCopyDeviceMs));
  return lanes.flatMap(({ name, path, copyBlocks }) => {
    const lane = samples.get(name);
    if (lane === undefined) return [];
    const speed = speeds(lane.elapsedMs);
    return [
      {
        memory: 'device' as const,
        gpus,
        kind,
        pageBytes: pieceBytes,
        bytes,
        lane: name,
        path,
        copyBlocks: copyBlocks ?? null,
        gigabytesPerSecond: speed,
        roofGigabytesPerSecond: roof,
        shareOfRoof: shareOf(speed, roof),
        bareCopyGigabytesPerSecond: bare,
        bareCopyDeviceGigabytesPerSecond: bareDevice,
        shareOfBareCopy: shareOf(speed, bare),
        ownContiguousGigabytesPerSecond: speeds(lane.contiguousMs),
        bareLoopGigabytesPerSecond: speeds(lane.bareLoopMs),
        wrongBytes: lane.wrongBytes,
        samples: lane,
      },
    ];
  });
}

function shareOf(speed: Percentiles | null, roof: Percentiles | null): number {
  return speed === null || roof === null ? 0 : speed.p50 / roof.p50;
}

/** Medians of each p2p lane over the NIXL lane's, per page size. */
function overRdma(rows: readonly DeviceTransferRow[]): Record<string, number> {
  return Object.fromEntries(
    rows.flatMap((row) => {
      const rdma = rows.find(
        (other) => other.lane === 'rdma' && other.kind === row.kind && other.pageBytes === row.pageBytes,
      );
      if (row.path !== 'p2p' || !rdma?.gigabytesPerSecond || !row.gigabytesPerSecond) return [];
      return [[subjectOf(row), row.gigabytesPerSecond.p50 / rdma.gigabytesPerSecond.p50] as const];
    }),
  );
}

/** The nixl agent over the bare loop, where descriptors are few and large. */
function overBareLoop(rows: readonly DeviceTransferRow[]): Record<string, number> {
  return Object.fromEntries(
    rows.flatMap((row) => {
      const { gigabytesPerSecond: agent, bareLoopGigabytesPerSecond: bare } = row;
      return agent === null || bare === null ? [] : [[subjectOf(row), agent.p50 / bare.p50] as const];
    }),
  );
}

function subjectOf({ lane, kind, pageBytes }: DeviceTransferRow): string {
  return kind === 'split' ? `${lane} split ${pageBytes}` : `${lane} ${pageBytes}`;
}

function p50(samples: readonly number[] | undefined): number | null {
  return samples === undefined ? null : (percentilesOf(samples)?.p50 ?? null);
}

const KIB = 1024;
const ABORT_FREE_MS = 10;
const NIXL_OVER_BARE_LOOP = 0.98;

function checksOf(
  rows: readonly DeviceTransferRow[],
  costs: { readonly submitUs: number | null; readonly postingUs: number | null; readonly eventUs: number | null },
  judged: boolean,
): readonly Check[] {
  const bytes = rows.map((row): Check => {
    const subject = subjectOf(row);
    return {
      name: 'wrongBytes',
      subject,
      met: row.wrongBytes === 0,
      judged: true,
      value: row.wrongBytes,
      bound: 0,
      relation: '=',
    };
  });
  const shareBounds = [
    { subject: `p2p-32 ${32 * KIB}`, bound: 0.9 },
    { subject: `p2p-16 ${32 * KIB}`, bound: 0.8 },
    { subject: `p2p-32 split ${4 * KIB}`, bound: 0.7 },
    { subject: `p2p-16 split ${4 * KIB}`, bound: 0.7 },
  ];
  // The bounds are about a link between two GPUs; one GPU's own memory is faster than a few blocks can copy.
  const shares = shareBounds.flatMap(({ subject, bound }): Check[] => {
    const row = rows.find((candidate) => subjectOf(candidate) === subject);
    if (row === undefined || row.gpus[0] === row.gpus[1]) return [];
    const value = row.shareOfBareCopy;
    return [{ name: 'shareOfBareCopy', subject, met: value >= bound, judged, value, bound, relation: '>=' }];
  });
  const ratios = overRdma(rows);
  const faster = [`p2p-32 ${32 * KIB}`, `p2p-16 ${32 * KIB}`].flatMap((subject): Check[] => {
    const value = ratios[subject];
    if (value === undefined) return [];
    return [{ name: 'p2pOverRdma', subject, met: value >= 30, judged, value, bound: 30, relation: '>=' }];
  });
  const bare = Object.entries(overBareLoop(rows)).map(([subject, value]): Check => {
    const bound = NIXL_OVER_BARE_LOOP;
    return { name: 'nixlOverBareLoop', subject, met: value >= bound, judged, value, bound, relation: '>=' };
  });
  const times = [
    { name: 'jsThreadUs', value: costs.submitUs, bound: 20 },
    { name: 'postingUs', value: costs.postingUs, bound: 40 },
    { name: 'eventToPageUs', value: costs.eventUs, bound: 20 },
  ].flatMap(({ name, value, bound }): Check[] => {
    if (value === null) return [];
    return [{ name, subject: 'slice of 2048', met: value <= bound, judged, value, bound, relation: '<=' }];
  });
  return [...bytes, ...shares, ...faster, ...bare, ...times];
}

function abortChecks(aborts: AbortCosts | null, judged: boolean): readonly Check[] {
  if (aborts === null) return [];
  const { slices, freeMs, behindEventMs, undrained, wrongBytes } = aborts;
  const what = slices === 'pages' ? 'slices' : 'long runs';
  const none = (name: string, value: number): Check => {
    return { name, subject: `aborts of ${what}`, met: value === 0, judged: true, value, bound: 0, relation: '=' };
  };
  const times = [
    { subject: `${what} under way`, values: freeMs },
    { subject: `${what} behind an event`, values: behindEventMs },
  ].flatMap(({ subject, values }): Check[] => {
    const value = percentilesOf(values)?.p99;
    if (value === undefined) return [];
    const bound = ABORT_FREE_MS;
    return [{ name: 'abortFreeMsP99', subject, met: value <= bound, judged, value, bound, relation: '<=' }];
  });
  return [none('bytesAfterAbort', wrongBytes), none('undrainedAborts', undrained), ...times];
}

function tableOf(rows: readonly DeviceTransferRow[]): string {
  return renderTable(
    ['page', 'moved', 'lane', 'GB/s', 'bare GB/s', 'share', 'own roof GB/s', 'share', 'wrong bytes'],
    rows.map((row) => [
      `${row.kind === 'split' ? 'split ' : ''}${formatBytes(row.pageBytes)}`,
      formatBytes(row.bytes),
      row.lane,
      row.gigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.bareCopyGigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.shareOfBareCopy.toFixed(3),
      row.roofGigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.shareOfRoof.toFixed(3),
      String(row.wrongBytes),
    ]),
  );
}
