import type { TtftVariant } from '../output-contract.js';
import { formatBytes, formatMs, formatPercent, renderTable } from '../text-table.js';
import type { TraceRow } from './trace-row.js';

const HEADER = [
  'variant',
  'done',
  'TTFT p50',
  'p90',
  'p99',
  'TBT p50',
  'p99',
  'queue p50',
  'tail p50',
  'hidden',
  'hit',
  'good',
  'good/s',
  'bytes',
  'wrong',
];

/** The table at the end of a run; times in ms. */
export function traceTable(rows: readonly TraceRow[]): string {
  return renderTable(
    HEADER,
    rows.map((row) => [
      row.variant,
      `${row.completed}/${row.requests}`,
      formatMs(row.ttftMs?.p50),
      formatMs(row.ttftMs?.p90),
      formatMs(row.ttftMs?.p99),
      formatMs(row.tbtMs?.p50),
      formatMs(row.tbtMs?.p99),
      formatMs(row.queueMs?.p50),
      formatMs(row.exposedTailMs?.p50),
      formatPercent(row.hiddenShare),
      formatPercent(row.contextHitShare),
      formatPercent(row.goodput.share),
      row.goodput.requestsPerSecond.toFixed(2),
      formatBytes(row.bytesVerified),
      String(row.wrongBytes),
    ]),
  );
}

/** Median TTFT and goodput of each variant against the first one's. */
export function traceHeadlines(rows: readonly TraceRow[]): readonly string[] {
  const monolithic = rows.find(({ variant }) => variant === 'monolithic');
  const lines = rows.flatMap((row) => {
    if (row === monolithic || row.ttftMs === null || monolithic?.ttftMs == null) return [];
    return [
      `${row.variant}: TTFT p50 ${formatMs(row.ttftMs.p50)} ms against ${formatMs(monolithic.ttftMs.p50)} ms monolithic ` +
        `(x ${(row.ttftMs.p50 / monolithic.ttftMs.p50).toFixed(2)}), p90 ${formatMs(row.ttftMs.p90)} against ${formatMs(monolithic.ttftMs.p90)} ms, ` +
        `good ${formatPercent(row.goodput.share)} against ${formatPercent(monolithic.goodput.share)}`,
    ];
  });
  const refused = rows.flatMap((row) =>
    row.rejections.map(({ reason, requests }) => `${row.variant}: ${requests} refused, as: ${reason}`),
  );
  const failed = rows.flatMap((row) => {
    const first = row.samples.find(({ outcome }) => outcome === 'failed');
    return first === undefined ? [] : [`${row.variant}: ${row.failed} failed, as: ${first.error ?? 'no reason given'}`];
  });
  return [...lines, ...refused, ...failed];
}

/** TTFT medians and goodput shares of one variant over another's. */
export function traceRatios(rows: readonly TraceRow[]): Readonly<Record<string, Readonly<Record<string, number>>>> {
  const over = (variant: TtftVariant, base: TtftVariant): Readonly<Record<string, number>> => {
    const [row, other] = [variant, base].map((name) => rows.find((one) => one.variant === name));
    if (row?.ttftMs == null || other?.ttftMs == null) return {};
    return {
      ttftP50: row.ttftMs.p50 / other.ttftMs.p50,
      ttftP90: row.ttftMs.p90 / other.ttftMs.p90,
      ...(other.goodput.share === 0 ? {} : { goodShare: row.goodput.share / other.goodput.share }),
    };
  };
  return {
    pipelinedOverMonolithic: over('pipelined', 'monolithic'),
    earlyPrefixOverPipelined: over('pipelined-early-prefix', 'pipelined'),
    earlyPrefixOverMonolithic: over('pipelined-early-prefix', 'monolithic'),
  };
}
