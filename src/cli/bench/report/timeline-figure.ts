import type { TimelineSlice } from '../output-contract.js';
import { formatBytes, formatMs } from '../text-table.js';
import { tickClass } from './chart.js';
import type { DrawnRequest, DrawnRun } from './chosen-requests.js';
import { type Html, html } from './html.js';
import { intoLanes, type Span } from './lanes.js';
import { linearScale, percent, type Scale, tickText } from './scale.js';
import { table } from './table.js';

/** Lanes of slices that a picture has at most; what does not fit is said. */
const MOST_LANES = 8;
/** Rows of the table beside a picture. */
const MOST_ROWS = 20;
/** Percent of the width from which on a bar has room for its name. */
const NAMED_WIDTH = 5;
const WANTED_TICKS = 5;

interface Bar extends Span {
  readonly look: string;
  readonly label: string;
}

/** One request in every variant, to one scale: what was computed when, which slices were under way, and what the user waited for. */
export function timelineFigure(request: DrawnRequest, id: string): Html {
  const longest = Math.max(...request.runs.map(({ sample }) => sample.ttftMs - originOf(request, sample)));
  const scale = linearScale(longest, WANTED_TICKS);
  const { promptTokens, request: number } = (request.runs[0] as DrawnRun).sample;
  return html`<figure id="${id}" class="timelines" aria-labelledby="${id}-title">
<figcaption id="${id}-title">Request ${number} (${promptTokens} prompt tokens): its TTFT is nearest to the ${nameOf(request.share)} of ${request.reference.variant}. All variants to one scale, ${request.startsAt === 'arrival' ? 'ms after its arrival' : 'ms after its first forward step; how long it waited before is said beside each'}.</figcaption>
${barLegend()}
${request.runs.map((run) => picture(run, originOf(request, run.sample), scale))}
${request.runs.map(partsTable)}</figure>
`;
}

function nameOf(share: number): string {
  return share === 0.5 ? 'median' : `${Number((100 * share).toFixed(1))}th percentile`;
}

function barLegend(): Html {
  const entries = [
    ['wait', 'waits'],
    ['compute', 'a chunk is computed'],
    ['early', 'early prefix under way'],
    ['slice', 'a slice under way'],
    ['last', 'the last slice under way'],
    ['tail', 'exposed tail'],
  ] as const;
  return html`<ul class="legend">${entries.map(([look, name]) => html`<li><span aria-hidden="true" class="key ${look}"></span> ${name}</li>`)}</ul>`;
}

/** Under load requests wait for other requests, and differently long in each variant: what they do afterwards is to be compared. */
function originOf({ startsAt }: DrawnRequest, { queueMs }: DrawnRun['sample']): number {
  return startsAt === 'arrival' ? 0 : queueMs;
}

function picture({ row, sample }: DrawnRun, originMs: number, scale: Scale): Html {
  const { chunks, slices } = sample.timeline;
  const draw = (name: string, bars: readonly Bar[]): Html =>
    lane(
      name,
      bars.map((bar) => ({ ...bar, begin: Math.max(0, bar.begin - originMs), end: Math.max(0, bar.end - originMs) })),
      scale,
    );
  const lanes = intoLanes(slices.flatMap(barOf));
  const shown = lanes.slice(0, MOST_LANES);
  const waits: Bar[] = [{ begin: 0, end: sample.queueMs, look: 'wait', label: '' }];
  const computed = chunks.map(({ startMark, endMark }, index): Bar => {
    return { begin: startMark, end: endMark, look: 'compute', label: `c${index}` };
  });
  const prefillEnd = sample.ttftMs - sample.exposedTailMs;
  const tail: Bar[] = [{ begin: prefillEnd, end: sample.ttftMs, look: 'tail', label: '' }];
  return html`<div class="picture"><h4>${row.variant}: first token after ${formatMs(sample.ttftMs)} ms${originMs > 0 ? ` (waited ${formatMs(originMs)} ms before)` : ''}, exposed tail ${formatMs(sample.exposedTailMs)} ms</h4>
<div class="lanes" role="img" aria-label="${summaryOf(sample)}">
${draw('compute', [...waits, ...computed])}
${shown.map((bars, index) => draw(index === 0 ? 'transfer' : '', bars))}
${draw('tail', tail)}
<div class="axis"><span class="lanename"></span><div class="track">${scale.ticks.map((tick, index) => html`<span class="${tickClass(index)}" style="left:${percent(scale.at(tick))}">${tickText(tick)}</span>`)}</div></div>
</div>${lanes.length > shown.length ? html`<p class="none">${lanes.length - shown.length} more lanes of slices that were under way at the same time are not drawn.</p>` : null}</div>
`;
}

function lane(name: string, bars: readonly Bar[], scale: Scale): Html {
  const drawn = bars.map(({ begin, end, look, label }) => {
    const width = scale.at(end) - scale.at(begin);
    return html`<span class="bar ${look}" style="left:${percent(scale.at(begin))};width:${percent(width)}">${width >= NAMED_WIDTH ? label : ''}</span>`;
  });
  return html`<div class="lane"><span class="lanename">${name}</span><div class="track">${drawn}</div></div>\n`;
}

/** From the post to the last byte: behind other slices on the link, it waits for them inside that time. */
function barOf({ kind, chunk, postedMark, finishedMark }: TimelineSlice): readonly Bar[] {
  if (postedMark === null || finishedMark === null) return [];
  const look = kind === 'early-prefix' ? 'early' : kind === 'last' ? 'last' : 'slice';
  return [{ begin: postedMark, end: finishedMark, look, label: chunk === null ? 'prefix' : `c${chunk}` }];
}

function summaryOf({ queueMs, prefillMs, ttftMs, exposedTailMs, timeline }: DrawnRun['sample']): string {
  const moved = timeline.slices.filter(({ postedMark }) => postedMark !== null).length;
  return (
    `waits ${formatMs(queueMs)} ms, computes ${timeline.chunks.length} chunks in ${formatMs(prefillMs)} ms, moves ${moved} slices, ` +
    `exposed tail ${formatMs(exposedTailMs)} ms, first token after ${formatMs(ttftMs)} ms`
  );
}

function partsTable({ row, sample }: DrawnRun): Html {
  const { chunks, slices } = sample.timeline;
  const parts = [
    ...slices
      .filter(({ chunk }) => chunk === null)
      .map((slice) => ['early prefix', '-', '-', '-', ...sliceCells(slice)]),
    ...chunks.flatMap(({ tokenBegin, tokenEnd, startMark, endMark }, index) => {
      const head = [`c${index}`, `${tokenBegin}-${tokenEnd}`, formatMs(startMark), formatMs(endMark)];
      const own = slices.filter(({ chunk }) => chunk === index);
      if (own.length === 0) return [[...head, '-', '-', '-']];
      return own.map((slice, nth) => [...(nth === 0 ? head : [`c${index}`, '', '', '']), ...sliceCells(slice)]);
    }),
  ];
  const left = parts.length - MOST_ROWS;
  const caption = `${row.variant}, request ${sample.request}: chunks and their slices, ms after the arrival${left > 0 ? ` (${left} more rows are in figures.json)` : ''}`;
  return table(
    caption,
    [
      { title: 'part' },
      { title: 'tokens', kind: 'text' },
      { title: 'computed from' },
      { title: 'to' },
      { title: 'sent from' },
      { title: 'to' },
      { title: 'bytes' },
    ],
    parts.slice(0, MOST_ROWS),
  );
}

function sliceCells({ postedMark, finishedMark, bytes }: TimelineSlice): readonly string[] {
  return [formatMs(postedMark), formatMs(finishedMark), formatBytes(bytes)];
}
