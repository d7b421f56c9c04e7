import type { TraceRow } from '../trace/trace-row.js';
import { chart, type Series } from './chart.js';
import { type Html, html } from './html.js';
import { type LoadAxis, type LoadMeasure, loadAxis, loadSeries } from './load-series.js';
import { linearScale } from './scale.js';
import { table } from './table.js';

const DRAWN_INTERVALS = 160;
const TABLE_INTERVALS = 10;

const FIGURES: readonly { readonly measure: LoadMeasure; readonly title: string; readonly yTitle: string }[] = [
  { measure: 'arriving', title: 'Arrivals', yTitle: 'requests a second' },
  { measure: 'waiting', title: 'Waiting for the first forward step', yTitle: 'requests' },
  { measure: 'moving', title: 'Pages under way', yTitle: 'GB/s' },
  { measure: 'decoding', title: 'Decoding', yTitle: 'requests' },
];

/** Load over time, one chart for each measure, all variants in the time that they had for themselves. */
export function loadSection(rows: readonly TraceRow[]): Html {
  const axis = loadAxis(rows);
  const rounds = axis.beginsMs.size;
  const turns =
    rounds < 2
      ? 'time counts from its first one'
      : `they take turns in ${rounds} rounds, and time counts while a variant has its turn, each round as long as the slowest of them needed; rounds begin at ${beginsOf(axis)} s`;
  return html`<section id="load"><h2>Load over time</h2>
<p>Every variant replays the same arrivals; ${turns}. Each value is the mean of an interval.</p>
${FIGURES.map((figure) => loadFigure(rows, axis, figure))}</section>
`;
}

function loadFigure(
  rows: readonly TraceRow[],
  axis: LoadAxis,
  { measure, title, yTitle }: (typeof FIGURES)[number],
): Html {
  const { lengthMs } = axis;
  // The same for all variants by design: one line says it.
  const drawn = measure === 'arriving' ? rows.slice(0, 1) : rows;
  const series = drawn.map((row): Series => {
    const { intervalMs, values } = loadSeries(row, measure, axis, DRAWN_INTERVALS);
    const points = values.map((value, index) => [((index + 0.5) * intervalMs) / 1000, value] as const);
    return {
      name: measure === 'arriving' ? 'all variants' : row.variant,
      look: measure === 'arriving' ? 'plain' : row.variant,
      points,
    };
  });
  const peak = Math.max(0, ...series.flatMap(({ points }) => points.map(([, value]) => value)));
  const coarse = drawn.map((row) => loadSeries(row, measure, axis, TABLE_INTERVALS));
  const summary = series
    .map(({ name, points }) => `${name}: at most ${show(Math.max(0, ...points.map(([, value]) => value)))} ${yTitle}`)
    .join('; ');
  return chart(
    {
      id: `load-${measure}`,
      title: `${title} (${yTitle})`,
      summary,
      x: linearScale(lengthMs / 1000, 6),
      y: linearScale(peak, 4),
      xTitle: axis.beginsMs.size < 2 ? 'seconds after the first arrival' : 'seconds of the turns of a variant',
      yTitle,
      series,
    },
    table(
      `${title}, ${yTitle}, mean of each tenth of the time`,
      [{ title: 'seconds' }, ...series.map(({ name }) => ({ title: name }))],
      Array.from({ length: TABLE_INTERVALS }, (_, index) => [
        `${((index * lengthMs) / TABLE_INTERVALS / 1000).toFixed(1)} to ${(((index + 1) * lengthMs) / TABLE_INTERVALS / 1000).toFixed(1)}`,
        ...coarse.map(({ values }) => show(values[index] ?? 0)),
      ]),
    ),
  );
}

function beginsOf({ beginsMs }: LoadAxis): string {
  return [...beginsMs.values()].map((ms) => (ms / 1000).toFixed(1)).join(', ');
}

function show(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
