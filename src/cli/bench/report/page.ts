import { chooseRequests } from './chosen-requests.js';
import { tbtSection, ttftSection } from './distribution-section.js';
import { checksSection, pathsSection, settingsSection } from './facts-sections.js';
import { Html, html } from './html.js';
import { loadSection } from './load-section.js';
import { PAGE_STYLE } from './page-style.js';
import { type AnyOutput, bySubject, requestRows, traceRows } from './report-output.js';
import { rowsSection } from './rows-section.js';
import { bytesSection, hiddenSection, summarySection } from './summary-section.js';
import { timelineFigure } from './timeline-figure.js';

/** Pictures of single requests in one page. */
const MOST_PICTURES = 6;

interface Section {
  readonly anchor: string;
  readonly title: string;
  readonly content: Html | null;
}

/**
 * A page for a bench's output that needs nothing but itself: no script, no font, no address; a policy in its head forbids all of them.
 * It can be read in light and dark, by keyboard and screen reader (each figure has its table beside it), on paper, and 390 pixels wide.
 */
export function reportPage(output: AnyOutput): string {
  const sections = sectionsOf(output).filter(({ content }) => content !== null);
  const title = `kv-transceiver bench ${output.bench}`;
  const page = html`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<title>${title}, ${output.startedAt}</title>
<style>${new Html(PAGE_STYLE)}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<h1>${title}</h1>
<p class="lead">${leadOf(output)}</p>
<nav aria-label="Sections"><ul>${sections.map(({ anchor, title: name }) => html`<li><a href="#${anchor}">${name}</a></li>`)}</ul></nav>
</header>
<main id="main">
${sections.map(({ content }) => content)}</main>
<footer><p>Beside this page: figures.json, everything it was made from${
    requestRows(output).length > 0
      ? ', and timeline.json, to be opened in Perfetto or in the tracing page of Chromium'
      : ''
  }. Made by kv-transceiver ${output.version}, commit ${output.commit}.</p></footer>
</body>
</html>
`;
  return page.markup;
}

function leadOf({ startedAt, machine, settings }: AnyOutput): string {
  const model = typeof settings['model'] === 'string' ? `${settings['model']}, ` : '';
  return `${model}${machine.cpu}, ${machine.cores} cores, started ${startedAt}`;
}

function sectionsOf(output: AnyOutput): readonly Section[] {
  const rows = requestRows(output);
  const common: readonly Section[] = [
    { anchor: 'paths', title: 'Paths', content: pathsSection(output) },
    { anchor: 'checks', title: 'Checks', content: checksSection(output) },
    { anchor: 'settings', title: 'Settings and machine', content: settingsSection(output) },
  ];
  if (rows.length === 0) return [{ anchor: 'summary', title: 'Results', content: rowsSection(output) }, ...common];
  const traces = traceRows(output);
  return [
    { anchor: 'summary', title: 'Summary', content: summarySection(output) },
    { anchor: 'ttft', title: 'Time to first token', content: ttftSection(rows) },
    { anchor: 'timelines', title: 'Timelines', content: timelinesSection(output) },
    { anchor: 'hidden', title: 'Hidden share', content: hiddenSection(rows) },
    { anchor: 'tbt', title: 'Time between tokens', content: tbtSection(output) },
    { anchor: 'load', title: 'Load', content: traces.length > 0 ? loadSection(traces) : null },
    { anchor: 'bytes', title: 'Bytes', content: bytesSection(rows) },
    ...common,
  ];
}

function timelinesSection(output: AnyOutput): Html {
  const [shares, startsAt] =
    output.bench === 'trace' ? ([[0.5, 0.9], 'first-forward'] as const) : ([[0.5], 'arrival'] as const);
  const chosen = [...bySubject(requestRows(output)).values()].flatMap((rows) => chooseRequests(rows, shares, startsAt));
  const figures = chosen.slice(0, MOST_PICTURES).map((request, index) => timelineFigure(request, `timeline-${index}`));
  return html`<section id="timelines"><h2>Where the time went</h2>
<p>A bar is as long as its time. Slices run from the moment they are posted to their last byte; on a paced link they queue behind one another inside that time. The exposed tail is what the user waits for after the prefill.</p>
${figures.length > 0 ? figures : html`<p class="none">No request has a timeline in all variants.</p>`}</section>
`;
}
