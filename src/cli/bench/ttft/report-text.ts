import { checkLine } from '../bench-end.js';
import type { Check, TtftRow } from '../output-contract.js';
import { formatBytes, formatMs, formatPercent, renderTable } from '../text-table.js';
import { COMPLETED_REQUESTS } from './checks.js';
import { rowOf, subjectOf } from './rows.js';

const HEADER = [
  'variant',
  'prompt',
  'TTFT p50',
  'p90',
  'prefill',
  'transfer',
  'tail',
  'last slice',
  'hidden',
  'bytes',
  'wrong',
];

/** The table at the end of a run; times are medians in ms. */
export function ttftTable(rows: readonly TtftRow[]): string {
  return renderTable(
    HEADER,
    rows.map((row) => [
      row.variant,
      subjectOf(row),
      formatMs(row.ttftMs?.p50),
      formatMs(row.ttftMs?.p90),
      formatMs(row.prefillMs?.p50),
      formatMs(row.transferMs?.p50),
      formatMs(row.exposedTailMs?.p50),
      formatMs(row.lastSliceMs?.p50),
      formatPercent(row.hiddenShare),
      formatBytes(row.bytesVerified),
      row.failed === 0 ? String(row.wrongBytes) : `${row.wrongBytes} (${row.failed} failed)`,
    ]),
  );
}

/** One line per prompt length: what pipelining saves. */
export function headlines(rows: readonly TtftRow[]): readonly string[] {
  return rows.flatMap((row) => {
    if (row.variant !== 'pipelined' || row.ttftMs === null) return [];
    const monolithic = rowOf(rows, 'monolithic', row)?.ttftMs?.p50;
    if (monolithic === undefined) return [];
    const pipelined = row.ttftMs.p50;
    const saved = monolithic - pipelined;
    const ideal = rowOf(rows, 'ideal', row)?.ttftMs?.p50;
    const ofIdeal =
      ideal === undefined || monolithic - ideal <= 0
        ? ''
        : `, ${((100 * saved) / (monolithic - ideal)).toFixed(0)} % of what the ideal saves`;
    return [
      `${row.promptTokens === null ? 'trace' : `${subjectOf(row)} tokens`}: TTFT ${formatMs(pipelined)} ms pipelined, ${formatMs(monolithic)} ms monolithic ` +
        `(x ${(pipelined / monolithic).toFixed(2)}, ${formatMs(saved)} ms saved${ofIdeal})`,
    ];
  });
}

/** One line per figure check; byte checks are one line together unless one fails. */
export function checkLines(checks: readonly Check[]): readonly string[] {
  const show = (check: Check): string =>
    checkLine(check, `${check.name} ${check.subject}: ${round(check.value)} ${check.relation} ${round(check.bound)}`);
  const isOfBytes = ({ relation, name }: Check): boolean => relation === '=' || name === COMPLETED_REQUESTS;
  const ofBytes = checks.filter(isOfBytes);
  const broken = ofBytes.filter((check) => !check.met);
  const lines =
    ofBytes.length > 0 && broken.length === 0
      ? ['met      every byte planned was sent, arrived and is right']
      : broken.map(show);
  return [...lines, ...checks.filter((check) => !isOfBytes(check)).map(show)];
}

function round(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toFixed(3);
}
