import type { TtftRow } from '../output-contract.js';
import { formatBytes, formatMs, formatPercent } from '../text-table.js';
import type { TraceRow } from '../trace/trace-row.js';
import { traceHeadlines } from '../trace/trace-text.js';
import { headlines } from '../ttft/report-text.js';
import { type Html, html } from './html.js';
import { type AnyOutput, requestRows, subjectName, traceRows } from './report-output.js';
import { table } from './table.js';

/** What came out, in sentences and one table. */
export function summarySection(output: AnyOutput): Html {
  const traces = traceRows(output);
  const lines = traces.length > 0 ? traceHeadlines(traces) : headlines(requestRows(output));
  return html`<section id="summary"><h2>Summary</h2>
${output.interrupted ? html`<p class="alarm">The run was interrupted: this is what was measured until then.</p>\n` : null}${
  lines.length > 0 ? html`<ul class="headlines">${lines.map((line) => html`<li>${line}</li>`)}</ul>\n` : null
}${requestTable(requestRows(output))}${traces.length > 0 ? loadTable(traces) : null}</section>
`;
}

function requestTable(rows: readonly TtftRow[]): Html {
  return table(
    'Medians, ms',
    [
      'variant',
      'prompt',
      'requests',
      'failed',
      'TTFT',
      'prefill',
      'transfer',
      'exposed tail',
      'last slice',
      'hidden',
    ].map((title) => ({ title, kind: title === 'prompt' ? ('text' as const) : ('figure' as const) })),
    rows.map((row) => [
      row.variant,
      subjectName(row),
      row.requests,
      row.failed,
      formatMs(row.ttftMs?.p50),
      formatMs(row.prefillMs?.p50),
      formatMs(row.transferMs?.p50),
      formatMs(row.exposedTailMs?.p50),
      formatMs(row.lastSliceMs?.p50),
      formatPercent(row.hiddenShare),
    ]),
  );
}

function loadTable(rows: readonly TraceRow[]): Html {
  const [slo] = rows.map((row) => row.slo);
  return html`${table(
    'Under load: what became of the requests',
    ['variant', 'arrived', 'done', 'failed', 'refused', 'offered/s', 'good', 'good/s', 'seconds'].map((title) => ({
      title,
    })),
    rows.map((row) => [
      row.variant,
      row.requests,
      row.completed,
      row.failed,
      row.rejected,
      row.offeredRequestsPerSecond.toFixed(2),
      formatPercent(row.goodput.share),
      row.goodput.requestsPerSecond.toFixed(2),
      (row.durationMs / 1000).toFixed(1),
    ]),
  )}${table(
    'Under load: reuse and queueing',
    [
      'variant',
      'context hit',
      'generation hit',
      'requests with hit',
      'queue p50 ms',
      'queue p90 ms',
      'queue p99 ms',
    ].map((title) => ({ title })),
    rows.map((row) => [
      row.variant,
      formatPercent(row.contextHitShare),
      formatPercent(row.generationHitShare),
      row.requestsWithHit,
      formatMs(row.queueMs?.p50),
      formatMs(row.queueMs?.p90),
      formatMs(row.queueMs?.p99),
    ]),
  )}<p>Good: TTFT of at most ${formatMs(slo?.ttftMs)} ms and a mean time between tokens of at most ${formatMs(slo?.tbtMs)} ms; failed and refused requests are not good. Hit: share of prompt tokens that a server had in its cache. Queue: from the arrival to the first forward step.</p>
`;
}

/** Which part of the monolithic transfer each variant hides behind the prefill. */
export function hiddenSection(rows: readonly TtftRow[]): Html | null {
  const known = rows.filter(({ hiddenShare }) => hiddenShare !== null);
  if (known.length === 0) return null;
  return html`<section id="hidden"><h2>Hidden share of the transfer</h2>
<p>1 - exposed tail / transfer of the monolithic variant, medians: 0 % = the user waits for all of it, 100 % = for nothing. Below zero: the tail is longer than that transfer alone.</p>
<figure aria-labelledby="hidden-title"><figcaption id="hidden-title">Hidden share, by variant</figcaption>
<ul class="shares">${known.map(
    (row) =>
      html`<li><span class="sharename">${row.variant}, ${subjectName(row)}</span><span class="sharetrack" aria-hidden="true"><span class="sharebar ${row.variant}" style="width:${(100 * Math.min(1, Math.max(0, row.hiddenShare ?? 0))).toFixed(2)}%"></span></span><span class="sharevalue">${formatPercent(row.hiddenShare)}</span></li>`,
  )}</ul>
${table(
  'Hidden share of the transfer, medians, ms',
  ['variant', 'prompt', 'exposed tail', 'monolithic transfer', 'hidden'].map((title) => ({
    title,
    kind: title === 'prompt' ? ('text' as const) : ('figure' as const),
  })),
  known.map((row) => [
    row.variant,
    subjectName(row),
    formatMs(row.exposedTailMs?.p50),
    formatMs(monolithicTransfer(rows, row)),
    formatPercent(row.hiddenShare),
  ]),
)}</figure></section>
`;
}

function monolithicTransfer(rows: readonly TtftRow[], row: TtftRow): number | undefined {
  return rows.find((other) => other.variant === 'monolithic' && subjectName(other) === subjectName(row))?.transferMs
    ?.p50;
}

export function bytesSection(rows: readonly TtftRow[]): Html {
  return html`<section id="bytes"><h2>Bytes</h2>
<p>Planned by the writer, completed by the transport, and checked by the receiver against the content that prompt, layer, head and place demand.</p>
${table(
  'Bytes of whole pages',
  ['variant', 'prompt', 'planned', 'sent', 'verified', 'in words', 'wrong bytes'].map((title) => ({
    title,
    kind: title === 'prompt' ? ('text' as const) : ('figure' as const),
  })),
  rows.map((row) => [
    row.variant,
    subjectName(row),
    row.bytesPlanned,
    row.bytesSent,
    row.bytesVerified,
    formatBytes(row.bytesVerified),
    row.wrongBytes,
  ]),
)}</section>
`;
}
