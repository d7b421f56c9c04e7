import type { TtftRow } from '../output-contract.js';
import type { Percentiles } from '../statistics.js';
import { formatMs } from '../text-table.js';
import { meanGapMs } from '../trace/trace-row.js';
import { type ChartOptions, chart } from './chart.js';
import { ecdf } from './ecdf.js';
import { type Html, html } from './html.js';
import { type AnyOutput, bySubject, completedOf, traceRows } from './report-output.js';
import { linearScale } from './scale.js';
import { table } from './table.js';

const SHARES = linearScale(100, 4);

/** How the times to first token of each variant are distributed, one chart for each kind of prompt. */
export function ttftSection(rows: readonly TtftRow[]): Html {
  const charts = [...bySubject(rows)].map(([subject, ofSubject], index) =>
    distribution(
      `ttft-${index}`,
      `Time to first token, ${subject}`,
      ofSubject,
      (row) => completedOf(row).map(({ ttftMs }) => ttftMs),
      (row) => row.ttftMs,
      sloOf(ofSubject, 'ttftMs'),
    ),
  );
  return html`<section id="ttft"><h2>Time to first token</h2>
<p>From the arrival of a request to its first token on the generation server, made from the transferred cache. Each line shows, for every time, the share of requests that were as fast.</p>
${charts}</section>
`;
}

/** Time between tokens, of a trace: its requests decode. */
export function tbtSection(output: AnyOutput): Html | null {
  const rows = traceRows(output);
  if (!rows.some(({ tbtMs }) => tbtMs !== null)) return null;
  return html`<section id="tbt"><h2>Time between tokens</h2>
<p>The mean of each request, by which it counts as good; the percentiles of all single gaps are in the second table.</p>
${distribution(
  'tbt-0',
  'Mean time between the tokens of a request',
  rows,
  (row) => completedOf(row).flatMap((sample) => meanGapMs(sample) ?? []),
  (row) => (row as (typeof rows)[number]).meanTbtMs,
  sloOf(rows, 'tbtMs'),
)}
${percentileTable('All gaps between tokens, ms', rows, (row) => (row as (typeof rows)[number]).tbtMs)}</section>
`;
}

function distribution(
  id: string,
  title: string,
  rows: readonly TtftRow[],
  valuesOf: (row: TtftRow) => readonly number[],
  percentiles: (row: TtftRow) => Percentiles | null,
  marks: NonNullable<ChartOptions['marks']>,
): Html {
  const series = rows.map((row) => ({ name: row.variant, look: row.variant, points: ecdf(valuesOf(row)) }));
  const longest = Math.max(0, ...series.flatMap(({ points }) => points.map(([value]) => value)));
  const summary = rows
    .map(
      (row) =>
        `${row.variant}: median ${formatMs(percentiles(row)?.p50)} ms, 90 % within ${formatMs(percentiles(row)?.p90)} ms`,
    )
    .join('; ');
  return chart(
    {
      id,
      title,
      summary,
      x: linearScale(longest, 6),
      y: SHARES,
      xTitle: 'ms',
      yTitle: '% of requests',
      // The staircase ends where its last request is; the rest of the axis is reached by all.
      series: series.map((one) => ({
        ...one,
        points: one.points.length === 0 ? [] : [...one.points, [longest, 100] as const],
      })),
      marks,
    },
    percentileTable(`${title}, ms`, rows, percentiles),
  );
}

function percentileTable(
  caption: string,
  rows: readonly TtftRow[],
  percentiles: (row: TtftRow) => Percentiles | null,
): Html {
  return table(
    caption,
    ['variant', 'requests', 'min', 'p50', 'p90', 'p99', 'max'].map((title) => ({ title })),
    rows.map((row) => {
      const found = percentiles(row);
      const cells = (['min', 'p50', 'p90', 'p99', 'max'] as const).map((name) => formatMs(found?.[name]));
      return [row.variant, completedOf(row).length, ...cells];
    }),
  );
}

function sloOf(rows: readonly TtftRow[], bound: 'ttftMs' | 'tbtMs'): NonNullable<ChartOptions['marks']> {
  const [first] = rows;
  if (first === undefined || !('slo' in first)) return [];
  const at = (first as TtftRow & { readonly slo: Readonly<Record<typeof bound, number>> }).slo[bound];
  return [{ at, name: `SLO ${formatMs(at)} ms` }];
}
