import { capabilities } from '../../../agent/native.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { UsageError } from '../../usage-error.js';
import { isAgentAvailable, nixlFacts } from '../agent-availability.js';
import { writeJson } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { Progress } from '../progress.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { formatBytes, renderTable } from '../text-table.js';
import { type DeviceLaneSpec, DeviceTransferRun, type LaneSamples, type SliceCosts } from './device-transfer-run.js';
import { ReceiverProcess } from './receiver-process.js';

export interface DeviceTransferOptions {
  readonly pageBytes: readonly number[];
  readonly totalBytes: number;
  readonly rounds: number;
  readonly seed: number;
  readonly gpus: readonly [number, number];
  readonly blocks: readonly number[];
  readonly json: string | null;
  readonly judge: boolean;
}

interface DeviceTransferRow {
  readonly memory: 'device';
  readonly gpus: readonly [number, number];
  readonly pageBytes: number;
  readonly pages: number;
  readonly lane: string;
  readonly path: 'p2p' | 'rdma';
  readonly copyBlocks: number | null;
  readonly gigabytesPerSecond: Percentiles | null;
  /** One contiguous copy of the same bytes over the p2p path in the same rounds. */
  readonly roofGigabytesPerSecond: Percentiles | null;
  readonly shareOfRoof: number;
  readonly wrongBytes: number;
  /** Contiguous, by the same agent. */
  readonly ownContiguousGigabytesPerSecond: Percentiles | null;
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
  const progress = new Progress(options.pageBytes.length * (options.rounds + 1));
  const receiver = new ReceiverProcess();
  const run = new DeviceTransferRun(receiver, options.gpus, options.totalBytes);
  const rows: DeviceTransferRow[] = [];
  let slices: SliceCosts | null = null;
  let interrupted = false;
  const stop = (): void => {
    interrupted = true;
    void receiver.end();
  };
  process.once('SIGINT', stop);
  process.once('SIGTERM', stop);
  try {
    await run.open(lanes);
    for (const pageBytes of options.pageBytes) {
      const label = `${formatBytes(pageBytes)} pages`;
      progress.show(label);
      const samples = await run.measure(pageBytes, options.rounds, options.seed, () => progress.advance(label));
      rows.push(...toRows(options, lanes, pageBytes, samples));
    }
    if (lanes[0] !== undefined) slices = await run.measureSlices(lanes[0].name);
  } catch (error) {
    if (!interrupted) throw error;
  } finally {
    progress.end();
    await Promise.all([run.close(), receiver.end()]);
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }

  const costs = { submitUs: p50(slices?.submitUs), postingUs: p50(slices?.postingUs), eventUs: p50(slices?.eventToPageUs) }; // biome-ignore format: one line
  const checks = checksOf(rows, costs, options.judge);
  const output: BenchOutput<DeviceTransferRow> & { readonly slices: SliceCosts | null } = {
    schema: OUTPUT_SCHEMA,
    bench: 'transfer',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: { ...options },
    machine: describeMachine(await nixlFacts()),
    results: rows,
    ratios: {
      shareOfRoof: Object.fromEntries(rows.map((row) => [`${row.lane} ${row.pageBytes}`, row.shareOfRoof])),
      p2pOverRdma: overRdma(rows),
      sliceUs: Object.fromEntries(
        Object.entries(costs).filter((entry): entry is [string, number] => entry[1] !== null),
      ),
    },
    checks,
    interrupted,
    slices,
  };
  const out = options.json === '-' ? process.stderr : process.stdout;
  if (rows.length > 0) out.write(`${tableOf(rows)}\n`);
  for (const { met, name, subject, value, relation, bound } of checks) {
    out.write(`${met ? 'met    ' : 'NOT MET'}  ${name} ${subject}: ${value.toFixed(2)} ${relation} ${bound}\n`);
  }
  writeJson(options.json, output);
  if (interrupted) return 130;
  return checks.some((check) => check.judged && !check.met) ? 1 : 0;
}

function toRows(
  { totalBytes, gpus }: DeviceTransferOptions,
  lanes: readonly DeviceLaneSpec[],
  pageBytes: number,
  samples: ReadonlyMap<string, LaneSamples>,
): DeviceTransferRow[] {
  const pages = Math.floor(totalBytes / pageBytes);
  const speeds = (elapsedMs: readonly number[]): Percentiles | null =>
    percentilesOf(elapsedMs.map((ms) => (pages * pageBytes) / 1e6 / ms));
  const roof = speeds([...samples].flatMap(([name, lane]) => (name === 'rdma' ? [] : lane.contiguousMs)));
  return lanes.flatMap(({ name, path, copyBlocks }) => {
    const lane = samples.get(name);
    if (lane === undefined) return [];
    const speed = speeds(lane.elapsedMs);
    return [
      {
        memory: 'device' as const,
        gpus,
        pageBytes,
        pages,
        lane: name,
        path,
        copyBlocks: copyBlocks ?? null,
        gigabytesPerSecond: speed,
        roofGigabytesPerSecond: roof,
        shareOfRoof: speed === null || roof === null ? 0 : speed.p50 / roof.p50,
        ownContiguousGigabytesPerSecond: speeds(lane.contiguousMs),
        wrongBytes: lane.wrongBytes,
        samples: lane,
      },
    ];
  });
}

/** Medians of each p2p lane over the NIXL lane's, per page size. */
function overRdma(rows: readonly DeviceTransferRow[]): Record<string, number> {
  return Object.fromEntries(
    rows.flatMap((row) => {
      const rdma = rows.find((other) => other.lane === 'rdma' && other.pageBytes === row.pageBytes);
      if (row.path !== 'p2p' || !rdma?.gigabytesPerSecond || !row.gigabytesPerSecond) return [];
      return [[`${row.lane} ${row.pageBytes}`, row.gigabytesPerSecond.p50 / rdma.gigabytesPerSecond.p50] as const];
    }),
  );
}

function p50(samples: readonly number[] | undefined): number | null {
  return samples === undefined ? null : (percentilesOf(samples)?.p50 ?? null);
}

const KIB = 1024;

function checksOf(
  rows: readonly DeviceTransferRow[],
  costs: { readonly submitUs: number | null; readonly postingUs: number | null; readonly eventUs: number | null },
  judged: boolean,
): readonly Check[] {
  const bytes = rows.map((row): Check => {
    const subject = `${row.lane} ${row.pageBytes}`;
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
    { lane: 'p2p-32', pageBytes: 32 * KIB, bound: 0.9 },
    { lane: 'p2p-16', pageBytes: 32 * KIB, bound: 0.8 },
    { lane: 'p2p-32', pageBytes: 4 * KIB, bound: 0.7 },
  ];
  // The bounds are about a link between two GPUs; one GPU's own memory is faster than a few blocks can copy.
  const shares = shareBounds.flatMap(({ lane, pageBytes, bound }): Check[] => {
    const row = rows.find((candidate) => candidate.lane === lane && candidate.pageBytes === pageBytes);
    if (row === undefined || row.gpus[0] === row.gpus[1]) return [];
    const subject = `${lane} ${pageBytes}`;
    const value = row.shareOfRoof;
    return [{ name: 'shareOfRoof', subject, met: value >= bound, judged, value, bound, relation: '>=' }];
  });
  const ratios = overRdma(rows);
  const faster = [`p2p-32 ${32 * KIB}`, `p2p-16 ${32 * KIB}`].flatMap((subject): Check[] => {
    const value = ratios[subject];
    if (value === undefined) return [];
    return [{ name: 'p2pOverRdma', subject, met: value >= 30, judged, value, bound: 30, relation: '>=' }];
  });
  const times = [
    { name: 'jsThreadUs', value: costs.submitUs, bound: 20 },
    { name: 'postingUs', value: costs.postingUs, bound: 40 },
    { name: 'eventToPageUs', value: costs.eventUs, bound: 20 },
  ].flatMap(({ name, value, bound }): Check[] => {
    if (value === null) return [];
    return [{ name, subject: 'slice of 2048', met: value <= bound, judged, value, bound, relation: '<=' }];
  });
  return [...bytes, ...shares, ...faster, ...times];
}

function tableOf(rows: readonly DeviceTransferRow[]): string {
  return renderTable(
    ['page', 'pages', 'lane', 'GB/s', 'roof GB/s', 'share', 'wrong bytes'],
    rows.map((row) => [
      formatBytes(row.pageBytes),
      String(row.pages),
      row.lane,
      row.gigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.roofGigabytesPerSecond?.p50.toFixed(1) ?? '-',
      row.shareOfRoof.toFixed(3),
      String(row.wrongBytes),
    ]),
  );
}
