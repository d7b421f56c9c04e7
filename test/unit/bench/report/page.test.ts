import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import type { TtftSample } from '../../../../src/cli/bench/output-contract.js';
import { escapeText, html } from '../../../../src/cli/bench/report/html.js';
import { reportPage } from '../../../../src/cli/bench/report/page.js';
import type { AnyOutput } from '../../../../src/cli/bench/report/report-output.js';
import { timelineEvents } from '../../../../src/cli/bench/report/timeline-events.js';
import type { TraceRow } from '../../../../src/cli/bench/trace/trace-row.js';
import { type Element, elementsOf, parseMarkup, tableCells, textOf } from '../../../support/markup.js';
import { validateTimeline } from '../../../support/timeline-file.js';
import { HOSTILE, traceOutput, ttftOutput } from './outputs.js';

const RESULTS = fileURLToPath(new URL('../../../../bench/results', import.meta.url));

/** Every output of a bench that this repository holds, also of versions that knew less. */
function committedOutputs(): readonly (readonly [string, AnyOutput])[] {
  return readdirSync(RESULTS, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.json'))
    .flatMap((name) => {
      const parsed = JSON.parse(readFileSync(`${RESULTS}/${name}`, 'utf8')) as AnyOutput;
      return (parsed as { readonly schema?: number }).schema === 1 ? [[name, parsed] as const] : [];
    });
}

const named = (page: Element, name: string): readonly Element[] =>
  [...elementsOf(page)].filter((one) => one.name === name);

describe('html', () => {
  it('escapes every hole but markup of its own', () => {
    const inner = html`<b>${'<&>'}</b>`;
    expect(html`<p title="${'"\''}">${inner}${['x<', 1, null]}</p>`.markup).toBe(
      '<p title="&quot;&#39;"><b>&lt;&amp;&gt;</b>x&lt;1</p>',
    );
    expect(escapeText('a\u0000\u001b\ufffeb\tc')).toBe('a\ufffd\ufffd\ufffdb\tc');
  });
});

describe.each([
  ['ttft', ttftOutput()],
  ['trace', traceOutput()],
  ['interrupted', { ...traceOutput(3), interrupted: true }],
  ['of one request', ttftOutput(1)],
  ...committedOutputs(),
] as readonly (readonly [string, AnyOutput])[])('the page of %s', (_name, output) => {
  const markup = reportPage(output);
  const page = parseMarkup(markup);

  it('is well formed, and nothing in it leads out of it', () => {
    expect(page.name).toBe('html');
    expect(markup).not.toMatch(/(?:https?|ftp|file|data|javascript):/i);
    expect(markup).not.toMatch(/<(?:script|link|img|iframe|object|embed|base|form)\b|\burl\(|@import|\bon[a-z]+=/i);
    const policy = named(page, 'meta').find(
      ({ attributes }) => attributes.get('http-equiv') === 'Content-Security-Policy',
    );
    expect(policy?.attributes.get('content')).toBe("default-src 'none'; style-src 'unsafe-inline'");
    expect(markup).not.toMatch(/\b(?:NaN|undefined|Infinity|\[object)\b/);
  });

  it('says what it is about to those who do not see it', () => {
    expect(page.attributes.get('lang')).toBe('en');
    expect(named(page, 'title')).toHaveLength(1);
    expect(named(page, 'h1')).toHaveLength(1);
    const ids = [...elementsOf(page)].flatMap(({ attributes }) => attributes.get('id') ?? []);
    expect(new Set(ids).size).toBe(ids.length);
    for (const link of named(page, 'a')) expect(ids).toContain(link.attributes.get('href')?.slice(1));
    for (const table of named(page, 'table')) {
      expect(textOf(named(table, 'caption')[0] as Element)).not.toBe('');
      for (const head of named(table, 'th')) expect(['col', 'row']).toContain(head.attributes.get('scope'));
      const widths = new Set(
        named(table, 'tr').map(({ children }) => children.filter((one) => typeof one !== 'string').length),
      );
      expect(widths.size).toBe(1);
    }
    for (const figure of named(page, 'figure')) {
      expect(ids).toContain(figure.attributes.get('aria-labelledby'));
      expect(named(figure, 'table').length).toBeGreaterThan(0);
    }
    for (const image of [...elementsOf(page)].filter(({ attributes }) => attributes.get('role') === 'img')) {
      expect(image.attributes.get('aria-label')).toMatch(/\d/);
    }
    // The only boxes that scroll take the focus, in the order of the page.
    for (const box of [...elementsOf(page)].filter(({ attributes }) => attributes.get('class') === 'scroll')) {
      expect([box.attributes.get('tabindex'), box.attributes.get('role')]).toEqual(['0', 'region']);
    }
    expect(markup).not.toMatch(/tabindex="[1-9]/);
  });
});

it('names that hold markup stay text', () => {
  const page = parseMarkup(reportPage(traceOutput(5)));
  const shown = HOSTILE.replaceAll('\u0000', '\ufffd');
  const [, path] = tableCells(page, 'Which way slices of each context rank took, as the agent explains it');
  expect(path).toEqual(['0', shown, 'host', shown, `thread: ${shown}; ${shown}`, `p2p: ${shown}`]);
  const facts = named(page, 'dd').map(textOf);
  expect(facts).toContain(`${shown}, 2 cores`);
  expect(facts).toContain(`a, ${shown}`);
  expect(named(page, 'script')).toEqual([]);
  expect(named(page, 'b')).toEqual([]);
});

describe('the timeline file', () => {
  it('is what a viewer can read, and holds every request', () => {
    const output = traceOutput();
    const file = JSON.parse(JSON.stringify(timelineEvents(output))) as ReturnType<typeof timelineEvents>;
    validateTimeline(file);
    const of = (ph: string, cat: string): number =>
      file.traceEvents.filter((event) => event.ph === ph && event.cat === cat).length;
    expect([of('b', 'request'), of('X', 'compute'), of('X', 'slices'), of('s', 'flow')]).toEqual([180, 360, 360, 360]);
    expect(file.otherData['requestsLeftOut']).toBe(0);
    const sessions = file.traceEvents.filter(({ ph, cat }) => ph === 'b' && cat === 'session');
    expect(sessions.filter(({ pid }) => pid === 2)).toHaveLength(180);
    expect(sessions.filter(({ pid }) => pid === 3)).toHaveLength(180);
    expect(new Set(sessions.map(({ id2 }) => id2?.local)).size).toBe(180);
    const chunk = file.traceEvents.find(
      ({ name, args }) => name === '#0 chunk 1' && args?.['variant'] === 'monolithic',
    );
    const { arrivedAtMs, timeline } = (output.results[0] as TraceRow).samples[0] as TtftSample;
    const second = timeline?.chunks[1];
    expect(chunk?.ts).toBe(Math.round(1000 * (arrivedAtMs + (second?.startMark ?? 0))));
    expect((chunk?.ts ?? 0) + (chunk?.dur ?? 0)).toBe(Math.round(1000 * (arrivedAtMs + (second?.endMark ?? 0))));
  });

  it('of a burst has a thread for each chunk and each slice that go on at once, however many', () => {
    const output = traceOutput();
    const row = output.results[0] as TraceRow;
    const sample = row.samples.find(({ timeline }) => timeline !== null) as TtftSample;
    // All at one moment: as many lanes of each kind as there are requests.
    const samples = Array.from({ length: 1200 }, (_, request) => ({ ...sample, request, arrivedAtMs: 0 }));
    const file = timelineEvents({ ...output, results: [{ ...row, samples }] });
    validateTimeline(file);
    const threads = new Map<string, Set<string>>();
    for (const { pid, tid, cat, ph } of file.traceEvents)
      if (ph !== 'M' && cat !== 'flow') {
        const kind = ph === 'X' ? cat : 'sessions';
        threads.set(`${pid}/${tid}`, (threads.get(`${pid}/${tid}`) ?? new Set<string>()).add(kind));
      }
    expect([...threads.values()].filter(({ size }) => size > 1)).toEqual([]);
    const named = new Map<string, string>(
      file.traceEvents.flatMap(({ name, pid, tid, args }) =>
        name === 'thread_name' ? [[`${pid}/${tid}`, String(args?.['name'])] as const] : [],
      ),
    );
    expect(new Set(named.values()).size + 2).toBe(named.size);
    for (const [thread, [kind]] of threads)
      expect(named.get(thread)).toMatch(
        { compute: /^executor, compute \d+$/, slices: /^slices \d+$/ }[kind ?? ''] ?? /^sessions$/,
      );
  });

  it.each([
    ['goes back in time', [{ ts: 5 }, { ts: 4 }]],
    [
      'overlaps the slice before',
      [
        { ts: 5, dur: 3 },
        { ts: 7, dur: 3 },
      ],
    ],
    ['is not ended', [{ ts: 5, ph: 'b' as const, id: '1' }]],
    [
      'is drawn in another process',
      [
        { ts: 5, ph: 'b' as const, id: '1' },
        { ts: 5, ph: 'b' as const, id: '1', pid: 2, name: 'f' },
      ],
    ],
    ['an arrow without a start', [{ ts: 5, ph: 'f' as const, id: '1' }]],
    [
      'an arrow that touches no slice',
      [
        { ts: 1, ph: 's' as const, id: '1' },
        { ts: 5, ph: 'f' as const, id: '1' },
      ],
    ],
    ['has no named process', [{ ts: 5, tid: 9 }]],
    ['a time that is no whole', [{ ts: 0.5 }]],
  ])('the validator sees what %s', (why, events) => {
    const head = ['process_name', 'thread_name'].flatMap((name) =>
      [1, 2].map((pid) => ({ name, cat: '', ph: 'M' as const, pid, tid: 1, ts: 0 })),
    );
    const traceEvents = events.map((event) => ({
      name: 'e',
      cat: 'c',
      ph: 'X' as const,
      pid: 1,
      tid: 1,
      dur: 0,
      ...event,
    }));
    expect(() =>
      validateTimeline({ displayTimeUnit: 'ms', otherData: {}, traceEvents: [...head, ...traceEvents] }),
    ).toThrow(why);
  });

  it('of an older output has no request and says so', () => {
    const [, output] = committedOutputs().find(([name, { bench }]) => bench === 'ttft' && name.includes('ttft-')) as readonly [string, AnyOutput]; // biome-ignore format: one line
    const file = timelineEvents(output);
    validateTimeline(file);
    expect(file.otherData['requestsLeftOut']).toBeGreaterThan(0);
  });
});
