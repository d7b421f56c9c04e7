import { PACKAGE_VERSION } from '../../../package-version.js';
import { type OptionValues, readOptions } from '../../options.js';
import { requireAgent } from '../agent-availability.js';
import { checkLine, checkText, endBench } from '../bench-end.js';
import { checkJsonTarget } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { Progress } from '../progress.js';
import { formatMs, renderTable } from '../text-table.js';
import { measureExecutor, measureNothing, measureSessions, type SessionsRow } from './measure-rows.js';
import { runAsWorker } from './run-as-worker.js';
import { SESSIONS_OPTIONS } from './sessions-options.js';

/** Of a turn, and of the timer that waits for its end. */
const BOUND_DELAY_MS = 5;
const BOUND_HEAP_BYTES = 4096;
const BOUND_REQUESTS_PER_SECOND = 2000;
const SCHEDULES = ['plain', 'overlap'] as const;

/** `kv-transceiver bench sessions`. @returns the exit code */
export async function sessionsCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(SESSIONS_OPTIONS, args);
  checkJsonTarget(options.json);
  await requireAgent('--agent', 'host');
  const exitCode = await runAsWorker();
  if (exitCode !== null) return exitCode;
  const startedAt = new Date().toISOString();
  const rows = await measureRows(options);
  const standstillMs = rows.find(({ variant }) => variant === 'nothing')?.turns.longestOwnMs ?? 0;
  const checks = rows.flatMap((row) => checksOf(row, standstillMs, options.judge));
  const output: BenchOutput<SessionsRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'sessions',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: options,
    machine: describeMachine(null),
    results: rows,
    ratios: {},
    checks,
    interrupted: false,
  };
  const lines = [sessionsTable(rows), ...checks.map((check) => checkLine(check, checkText(check, 1)))];
  if (options.judge && standstillMs > BOUND_DELAY_MS) lines.push(standstillLine(standstillMs));
  return endBench(output, lines, options);
}

async function measureRows(options: OptionValues<typeof SESSIONS_OPTIONS>): Promise<readonly SessionsRow[]> {
  const { sessions, rate, concurrency, seconds } = options;
  const loads = sessions.length + SCHEDULES.length;
  const progress = new Progress(1 + loads);
  // For as long as all the others together: what comes seldom would else be missed.
  progress.show('nothing');
  const rows: SessionsRow[] = [await measureNothing(loads * seconds * 1000)];
  progress.advance('nothing');
  for (const count of sessions) {
    progress.show(`${count} live requests`);
    rows.push(await measureSessions(count, rate, seconds * 1000));
    progress.advance(`${count} live requests`);
  }
  for (const schedule of SCHEDULES) {
    progress.show(`executors, ${schedule}`);
    rows.push(await measureExecutor(concurrency, seconds * 1000, schedule));
    progress.advance(`executors, ${schedule}`);
  }
  progress.end();
  return rows;
}

function standstillLine(standstillMs: number): string {
  return `longestOwnTurnMs was not judged: a loop that did nothing stood still for ${standstillMs.toFixed(1)} ms; this machine cannot tell`;
}

/**
 * Lost and failed requests count always, figures of speed and size on request.
 * @param standstillMs longest turn of a loop that did nothing: above the bound no single turn says anything of what was done in it
 */
export function checksOf(row: SessionsRow, standstillMs: number, judge: boolean): readonly Check[] {
  if (row.variant === 'nothing') return [];
  const subject = `${row.variant} ${row.sessions}`;
  const check = (
    name: string,
    value: number,
    relation: Check['relation'],
    bound: number,
    judged: boolean,
  ): readonly Check[] => [
    {
      name,
      subject,
      met: relation === '<=' ? value <= bound : relation === '>=' ? value >= bound : value === bound,
      judged,
      value,
      bound,
      relation,
    },
  ];
  return [
    ...check('lostRequests', row.lost, '=', 0, true),
    ...check('failedRequests', row.failed, '=', 0, true),
    ...check('loopDelayP99Ms', row.loopDelayMs.p99, '<=', BOUND_DELAY_MS, judge),
    // What others had of the core is in the delay, and not in this.
    ...(row.turns.cpuMs === null ? [] : check('turnCpuP99Ms', row.turns.cpuMs.p99, '<=', BOUND_DELAY_MS, judge)),
    ...check('longestOwnTurnMs', row.turns.longestOwnMs, '<=', BOUND_DELAY_MS, judge && standstillMs <= BOUND_DELAY_MS),
    ...(row.heapBytesPerSession === null
      ? []
      : check('heapBytesPerSession', row.heapBytesPerSession, '<=', BOUND_HEAP_BYTES, judge)),
    ...(row.variant === 'sessions'
      ? []
      : check('requestsPerSecond', row.requestsPerSecond, '>=', BOUND_REQUESTS_PER_SECOND, judge)),
  ];
}

function sessionsTable(rows: readonly SessionsRow[]): string {
  return renderTable(
    [
      'what',
      'live requests',
      'requests/s',
      'loop delay p50 ms',
      'p99',
      'max',
      'longest turn ms',
      'on a core p99',
      'max',
      'without GC',
      'GC max',
      'GC %',
      'waited for a core %',
      'heap bytes/session',
      'CPU %',
    ],
    rows.map((row) => [
      row.variant,
      String(row.sessions),
      row.requestsPerSecond.toFixed(0),
      formatMs(row.loopDelayMs.p50),
      formatMs(row.loopDelayMs.p99),
      formatMs(row.loopDelayMs.max),
      formatMs(row.turns.wallMs?.max ?? null),
      formatMs(row.turns.cpuMs?.p99 ?? null),
      formatMs(row.turns.cpuMs?.max ?? null),
      formatMs(row.turns.longestOwnMs),
      formatMs(row.turns.garbageCollection.maxMs),
      (100 * row.turns.garbageCollection.share).toFixed(1),
      row.turns.waitedForCoreShare === null ? '-' : (100 * row.turns.waitedForCoreShare).toFixed(0),
      row.heapBytesPerSession === null ? '-' : row.heapBytesPerSession.toFixed(0),
      (100 * row.cpuShare).toFixed(0),
    ]),
  );
}
