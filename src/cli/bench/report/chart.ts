import { type Content, type Html, html } from './html.js';
import { coordinate, percent, type Scale, tickText } from './scale.js';

/** One line of a chart. */
export interface Series {
  readonly name: string;
  /** Which colour and dash it has: the variant, or `plain`. */
  readonly look: string;
  readonly points: readonly (readonly [number, number])[];
}

export interface ChartOptions {
  readonly id: string;
  readonly title: string;
  /** What the lines show, in a sentence, for those who do not see them. */
  readonly summary: string;
  readonly x: Scale;
  readonly y: Scale;
  readonly xTitle: string;
  readonly yTitle: string;
  readonly series: readonly Series[];
  /** Vertical lines with a name, as a bound. */
  readonly marks?: readonly { readonly at: number; readonly name: string }[];
}

/**
 * A line chart that keeps its text size at any width: the lines are stretched with the box, whose strokes do not scale; ticks and names are
 * text of the page. The table beside it says the same in figures.
 */
export function chart(options: ChartOptions, beside: Content): Html {
  const { id, title, summary, x, y, xTitle, yTitle, series, marks = [] } = options;
  const lines = series.map(
    ({ look, points }) =>
      html`<path class="line ${look}" d="${pathOf(points, x, y)}" vector-effect="non-scaling-stroke"/>`,
  );
  const grid = [
    ...y.ticks.map(
      (tick) =>
        html`<path class="grid" d="M0 ${coordinate(100 - y.at(tick))}H1000" vector-effect="non-scaling-stroke"/>`,
    ),
    ...marks
      .filter(({ at }) => at <= x.max)
      .map(
        ({ at }) => html`<path class="bound" d="M${coordinate(x.at(at))} 0V1000" vector-effect="non-scaling-stroke"/>`,
      ),
  ];
  return html`<figure id="${id}" aria-labelledby="${id}-title">
<figcaption id="${id}-title">${title}</figcaption>
${legend(series)}
<div class="chart"><div class="ytitle">${yTitle}</div><div class="plot">
<svg role="img" aria-label="${summary}" viewBox="0 0 1000 1000" preserveAspectRatio="none">${grid}${lines}</svg>
${y.ticks.map((tick) => html`<span class="ytick" aria-hidden="true" style="top:${percent(100 - y.at(tick))}">${tickText(tick)}</span>`)}
${x.ticks.map((tick, index) => html`<span class="${tickClass(index)}" aria-hidden="true" style="left:${percent(x.at(tick))}">${tickText(tick)}</span>`)}
${marks
  .filter(({ at }) => at <= x.max)
  .map(({ at, name }) => html`<span class="markname" style="left:${percent(x.at(at))}">${name}</span>`)}
</div><div class="xtitle">${xTitle}</div></div>
${beside}</figure>
`;
}

/** Names beside samples of the lines: the dash tells them apart without colour. */
export function legend(entries: readonly Pick<Series, 'name' | 'look'>[]): Html {
  return html`<ul class="legend">${entries.map(
    ({ name, look }) =>
      html`<li><svg aria-hidden="true" viewBox="0 0 36 10" width="36" height="10"><path class="line ${look}" d="M1 5H35"/></svg> ${name}</li>`,
  )}</ul>`;
}

/** Every second tick gives way where the page is narrow. */
export function tickClass(index: number): string {
  return index % 2 === 0 ? 'xtick' : 'xtick minor';
}

/** Straight lines between points; a step is two points. */
function pathOf(points: readonly (readonly [number, number])[], x: Scale, y: Scale): string {
  return points
    .map(([px, py], index) => `${index === 0 ? 'M' : 'L'}${coordinate(x.at(px))} ${coordinate(100 - y.at(py))}`)
    .join('');
}
