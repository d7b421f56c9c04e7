import { PACKAGE_VERSION } from '../../../package-version.js';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { isAgentAvailable, nixlFacts, requireAgent } from '../agent-availability.js';
import { checkLine, checkText, endBench } from '../bench-end.js';
import { checkJsonTarget } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { checkPoolsFit } from '../memory-guard.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { Progress } from '../progress.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { formatBytes, renderTable } from '../text-table.js';
import { bounceTransferCommand } from './bounce-transfer-command.js';
import { deviceTransferCommand } from './device-transfer-command.js';
import { POOL_OVER_MOVED } from './page-set.js';
import { ReceiverProcess } from './receiver-process.js';
import { TRANSFER_OPTIONS } from './transfer-options.js';
import { type AgentKind, type CopyWay, type PageMeasurement, TransferRun } from './transfer-run.js';

const WAYS: readonly CopyWay[] = ['memcpy', 'contiguous', 'host', 'nixl'];

/** Smallest and largest page sizes a view of two-byte elements can have. */
const MIN_PAGE_BYTES = 64;

/** After Ctrl-C the bench is gone within two seconds. */
const INTERRUPT_DEADLINE_MS = 1200;

interface TransferRow {
  readonly pageBytes: number;
  readonly pages: number;
  readonly bytes: number;
  readonly memory: 'host';
  /** Null for an agent that was not measured. */
  readonly gigabytesPerSecond: Readonly<Record<CopyWay, Percentiles | null>>;
  readonly wrongBytes: Readonly<Record<AgentKind, number | null>>;
  readonly samples: Readonly<Record<CopyWay, readonly number[]>>;
}

/** `kv-transceiver bench transfer`. @returns the exit code */
export async function transferCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(TRANSFER_OPTIONS, args);
  checkJsonTarget(options.json);
  const odd = options.pageBytes.find(
    (bytes) => bytes % 2 !== 0 || bytes < MIN_PAGE_BYTES || bytes > options.totalBytes,
  );
  if (odd !== undefined) {
    throw new UsageError(
      `--page-bytes: ${odd} is not an even size from ${MIN_PAGE_BYTES} to --total-bytes (${options.totalBytes})`,
    );
  }
  if (options.path === 'bounce') return bounceTransferCommand(options);
  if (options.memory === 'device') return deviceTransferCommand(options);
  for (const agent of options.agents ?? []) await requireAgent('--agents', agent);
  const agents =
    options.agents ?? ((await isAgentAvailable('nixl')) ? (['host', 'nixl'] as const) : (['host'] as const));
  // Two pools per agent, and the second local one.
  checkPoolsFit(
    options.totalBytes * POOL_OVER_MOVED,
    2 * agents.length + 1,
    'lower --total-bytes or name one of --agents',
  );

  const startedAt = new Date().toISOString();
  const progress = new Progress(options.pageBytes.length * (options.rounds + 1));
  const receiver = new ReceiverProcess();
  const run = new TransferRun(receiver, options.totalBytes);
  const rows: TransferRow[] = [];
  let interrupted = false;
  const stop = (): void => {
    interrupted = true;
    void receiver.end();
    // A pool that is being allocated cannot be interrupted, only left behind.
    setTimeout(() => process.exit(130), INTERRUPT_DEADLINE_MS).unref();
  };
  process.on('SIGINT', stop);
  process.on('SIGTERM', stop);
  try {
    progress.show('opening agents');
    await run.open(agents);
    for (const pageBytes of options.pageBytes) {
      const label = `${formatBytes(pageBytes)} pages`;
      progress.show(label);
      rows.push(toRow(await run.measure(pageBytes, options.rounds, options.seed, () => progress.advance(label))));
    }
  } catch (error) {
    if (!interrupted) throw error;
  } finally {
    progress.end();
    await Promise.all([run.close(), receiver.end()]);
    process.off('SIGINT', stop);
    process.off('SIGTERM', stop);
  }

  const checks = transferChecks(rows, options.judge);
  const output: BenchOutput<TransferRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'transfer',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: { ...options, agents },
    machine: describeMachine(await nixlFacts()),
    results: rows,
    ratios: { hostOverMemcpy: ratio(rows, 'host', 'memcpy'), hostOverNixl: ratio(rows, 'host', 'nixl') },
    checks,
    interrupted,
  };
  const lines = [transferTable(rows), ...checks.map((check) => checkLine(check, checkText(check, 2)))];
  return endBench(output, lines, options);
}

function toRow({ pageBytes, pageCount, elapsedMs, wrongBytes }: PageMeasurement): TransferRow {
  const bytes = pageBytes * pageCount;
  const speeds = (way: CopyWay): Percentiles | null => percentilesOf(elapsedMs[way].map((ms) => bytes / 1e6 / ms));
  return {
    pageBytes,
    pages: pageCount,
    bytes,
    memory: 'host',
    gigabytesPerSecond: {
      memcpy: speeds('memcpy'),
      contiguous: speeds('contiguous'),
      host: speeds('host'),
      nixl: speeds('nixl'),
    },
    wrongBytes,
    samples: elapsedMs,
  };
}

/** Medians of one way over another's, per page size. */
function ratio(rows: readonly TransferRow[], way: CopyWay, over: CopyWay): Record<string, number> {
  const entries = rows.flatMap(({ pageBytes, gigabytesPerSecond }) => {
    const [a, b] = [gigabytesPerSecond[way], gigabytesPerSecond[over]];
    return a === null || b === null ? [] : [[String(pageBytes), a.p50 / b.p50] as const];
  });
  return Object.fromEntries(entries);
}

/** What the host agent must reach against a plain copy of the same pages, and against NIXL over shared memory. */
const BOUNDS = [
  { name: 'hostOverMemcpy', over: 'memcpy', pageBytes: 32 * 1024, bound: 0.85 },
  { name: 'hostOverNixl', over: 'nixl', pageBytes: 32 * 1024, bound: 2.5 },
  { name: 'hostOverNixl', over: 'nixl', pageBytes: 4 * 1024, bound: 4 },
] as const;

function transferChecks(rows: readonly TransferRow[], judged: boolean): readonly Check[] {
  const bytes = rows.flatMap((row) =>
    (['host', 'nixl'] as const).flatMap((agent): Check[] => {
      const value = row.wrongBytes[agent];
      if (value === null) return [];
      const subject = `${agent} ${row.pageBytes}`;
      return [{ name: 'wrongBytes', subject, met: value === 0, judged: true, value, bound: 0, relation: '=' }];
    }),
  );
  const figures = BOUNDS.flatMap(({ name, over, pageBytes, bound }): Check[] => {
    const value = ratio(rows, 'host', over)[String(pageBytes)];
    if (value === undefined) return [];
    return [{ name, subject: String(pageBytes), met: value >= bound, judged, value, bound, relation: '>=' }];
  });
  return [...bytes, ...figures];
}

function transferTable(rows: readonly TransferRow[]): string {
  const speed = (value: Percentiles | null): string => (value === null ? '-' : value.p50.toFixed(2));
  const share = (a: Percentiles | null, b: Percentiles | null): string =>
    a === null || b === null ? '-' : (a.p50 / b.p50).toFixed(2);
  return renderTable(
    ['page', 'pages', ...WAYS.map((way) => `${way} GB/s`), 'host/memcpy', 'host/nixl'],
    rows.map(({ pageBytes, pages, gigabytesPerSecond: speeds }) => [
      formatBytes(pageBytes),
      String(pages),
      ...WAYS.map((way) => speed(speeds[way])),
      share(speeds.host, speeds.memcpy),
      share(speeds.host, speeds.nixl),
    ]),
  );
}
