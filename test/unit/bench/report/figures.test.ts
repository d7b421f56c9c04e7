import { describe, expect, it } from 'vitest';
import type { BenchOutput, TtftRow, TtftSample } from '../../../../src/cli/bench/output-contract.js';
import { loadAxis, loadSeries } from '../../../../src/cli/bench/report/load-series.js';
import { reportPage } from '../../../../src/cli/bench/report/page.js';
import type { TraceRow } from '../../../../src/cli/bench/trace/trace-row.js';
import { traceTable } from '../../../../src/cli/bench/trace/trace-text.js';
import { ttftTable } from '../../../../src/cli/bench/ttft/report-text.js';
import { elementsOf, parseMarkup, tableCells } from '../../../support/markup.js';
import { recomputeTraceRow, recomputeTtftRow } from '../../../support/recompute.js';
import { SLO, traceOutput, ttftOutput } from './outputs.js';

/** What a reader of the file has. */
function throughJson<T>(output: T): T {
  return JSON.parse(JSON.stringify(output)) as T;
}

/** As the tables print it. */
function ms(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;

describe('figures recomputed from the JSON', () => {
  const trace: BenchOutput<TraceRow> = throughJson(traceOutput());
  const ttft: BenchOutput<TtftRow> = throughJson(ttftOutput());

  it('rows of a trace follow from their samples', () => {
    expect(trace.results).toHaveLength(3);
    for (const row of trace.results) {
      const again = recomputeTraceRow(row, trace.results, SLO);
      expect(Object.fromEntries(Object.keys(again).map((key) => [key, row[key as keyof TraceRow]]))).toEqual(again);
      expect(again).toMatchObject({ requests: 64, completed: 60, rejected: 4, failed: 0 });
    }
    // The bounds cut through the samples, or the goodput would be tested by nothing.
    const good = trace.results.map(({ goodput }) => goodput.goodRequests);
    expect(Math.min(...good)).toBeGreaterThan(0);
    expect(Math.max(...good)).toBeLessThan(60);
  });

  it('rows of ttft follow from their samples', () => {
    for (const row of ttft.results) {
      const again = recomputeTtftRow(row, ttft.results);
      expect(Object.fromEntries(Object.keys(again).map((key) => [key, row[key as keyof TtftRow]]))).toEqual(again);
    }
  });

  it('the refused are counted by reason, their numbers apart', () => {
    expect(trace.results[0]?.rejections).toEqual([
      { reason: 'generation: RequestTooLargeError: request 3 needs 43 blocks', requests: 4 },
    ]);
  });

  it('the table of the terminal shows them', () => {
    const lines = traceTable(trace.results).split('\n').slice(2);
    expect(lines.map((line) => line.split(/\s{2,}/))).toEqual(
      trace.results.map((row) => {
        const again = recomputeTraceRow(row, trace.results, SLO);
        const { ttftMs, tbtMs, queueMs, exposedTailMs, goodput } = again;
        return [
          row.variant,
          `${again.completed}/${again.requests}`,
          ...[ttftMs.p50, ttftMs.p90, ttftMs.p99, tbtMs.p50, tbtMs.p99, queueMs.p50, exposedTailMs.p50].map(ms),
          percent(again.hiddenShare),
          percent(again.contextHitShare),
          percent(goodput.share),
          goodput.requestsPerSecond.toFixed(2),
          `${(again.bytesVerified / 2 ** 20).toFixed(2)} MiB`,
          '0',
        ];
      }),
    );
    const [, , ...ttftLines] = ttftTable(ttft.results).split('\n');
    expect(ttftLines.map((line) => line.split(/\s{2,}/)[2])).toEqual(
      ttft.results.map((row) => ms(recomputeTtftRow(row, ttft.results).ttftMs.p50)),
    );
  });

  it('the tables of the page show them', () => {
    const page = parseMarkup(reportPage(trace));
    const again = trace.results.map((row) => recomputeTraceRow(row, trace.results, SLO));
    const [, ...distribution] = tableCells(page, 'Time to first token, the trace, ms');
    expect(distribution).toEqual(
      again.map(({ completed, ttftMs }, index) => [
        trace.results[index]?.variant,
        String(completed),
        ...[ttftMs.min, ttftMs.p50, ttftMs.p90, ttftMs.p99, ttftMs.max].map(ms),
      ]),
    );
    const [, ...gaps] = tableCells(page, 'All gaps between tokens, ms');
    expect(gaps.map((row) => row.slice(2))).toEqual(
      again.map(({ tbtMs }) => [tbtMs.min, tbtMs.p50, tbtMs.p90, tbtMs.p99, tbtMs.max].map(ms)),
    );
    const [, ...outcomes] = tableCells(page, 'Under load: what became of the requests');
    expect(outcomes.map((row) => row.slice(1))).toEqual(
      again.map((row) => [
        ...[row.requests, row.completed, row.failed, row.rejected].map(String),
        row.offeredRequestsPerSecond.toFixed(2),
        percent(row.goodput.share),
        row.goodput.requestsPerSecond.toFixed(2),
        (row.durationMs / 1000).toFixed(1),
      ]),
    );
    const [, ...hidden] = tableCells(page, 'Hidden share of the transfer, medians, ms');
    expect(hidden.map((row) => row.at(-1))).toEqual(again.map((row) => percent(row.hiddenShare)));
    const [, ...bytes] = tableCells(page, 'Bytes of whole pages');
    expect(bytes.map((row) => row.slice(2, 5))).toEqual(
      again.map((row) => [row.bytesPlanned, row.bytesSent, row.bytesVerified].map(String)),
    );
  });

  it('the picture of a request is as long as its parts', () => {
    const page = parseMarkup(reportPage(ttft));
    const pictures = [...elementsOf(page)].filter(({ attributes }) => attributes.get('class') === 'picture');
    expect(pictures).toHaveLength(3);
    const [caption] = [...elementsOf(page)].filter(({ attributes }) => attributes.get('id') === 'timeline-0-title');
    const request = Number(/Request (\d+)/.exec(String(caption?.children[0]))?.[1]);
    const runs = ttft.results.map((row) => row.samples.find((sample) => sample.request === request) as TtftSample);
    const longest = Math.max(...runs.map(({ ttftMs }) => ttftMs));
    pictures.forEach((picture, index) => {
      const { exposedTailMs, ttftMs, timeline } = runs[index] as TtftSample;
      const bars = [...elementsOf(picture)].filter(({ attributes }) => /^bar /.test(attributes.get('class') ?? ''));
      const placeOf = (look: string): readonly number[] => {
        const found = bars.find(({ attributes }) => attributes.get('class') === `bar ${look}`);
        const style = /^left:([\d.]+)%;width:([\d.]+)%$/.exec(found?.attributes.get('style') ?? '');
        return [Number(style?.[1]), Number(style?.[2])];
      };
      const [tailLeft, tailWidth] = placeOf('tail') as [number, number];
      expect(tailLeft).toBeCloseTo((100 * (ttftMs - exposedTailMs)) / longest, 2);
      expect(tailWidth).toBeCloseTo((100 * exposedTailMs) / longest, 2);
      const last = timeline?.slices[1];
      const [lastLeft, lastWidth] = placeOf('last') as [number, number];
      expect(lastLeft).toBeCloseTo((100 * (last?.postedMark ?? 0)) / longest, 2);
      expect(lastWidth).toBeCloseTo((100 * ((last?.finishedMark ?? 0) - (last?.postedMark ?? 0))) / longest, 2);
    });
  });

  it('load over time holds every request for as long as it took', () => {
    const [row] = trace.results as readonly [TraceRow];
    // Of all variants: the slowest needs longer than this one.
    const axis = loadAxis(trace.results);
    const done = row.samples.filter(({ outcome }) => outcome === 'completed');
    const areaOf = (measure: Parameters<typeof loadSeries>[1], intervals: number): number => {
      const { intervalMs, values } = loadSeries(row, measure, axis, intervals);
      return intervalMs * values.reduce((total, value) => total + value, 0);
    };
    for (const intervals of [1, 7, 160]) {
      const total = (of: (sample: TtftSample) => number): number => done.reduce((sum, sample) => sum + of(sample), 0);
      expect(areaOf('waiting', intervals)).toBeCloseTo(
        total(({ queueMs }) => queueMs),
        6,
      );
      expect(areaOf('decoding', intervals)).toBeCloseTo(
        total(({ finishedMark, ttftMs }) => (finishedMark ?? 0) - ttftMs),
        6,
      );
      // GB/s times ms is a million bytes.
      expect(1e6 * areaOf('moving', intervals)).toBeCloseTo(
        total(({ bytesSent }) => bytesSent),
        3,
      );
      // Those that were refused arrive too.
      expect(areaOf('arriving', intervals) / 1000).toBeCloseTo(row.samples.length, 6);
    }
  });

  it('rounds lie one behind the other, as long as the slowest variant needed, the same arrivals at the same place', () => {
    const axis = loadAxis(trace.results);
    const roundMs = [0, 1, 2].map((round) =>
      Math.max(...trace.results.map(({ rounds }) => rounds[round]?.durationMs ?? 0)),
    ) as [number, number, number];
    expect([...axis.beginsMs]).toEqual([
      [0, 0],
      [1, roundMs[0]],
      [2, roundMs[0] + roundMs[1]],
    ]);
    expect(axis.lengthMs).toBeCloseTo(roundMs[0] + roundMs[1] + roundMs[2], 6);
    // Long after each other on the clock; close together on the axis.
    const [first] = trace.results as readonly [TraceRow];
    expect((first.rounds[1]?.startedAtMs ?? 0) - first.startedAtMs).toBeGreaterThan(50_000);
    expect(axis.lengthMs).toBeLessThan(20_000);
  });

  it('files of versions without rounds are one round', () => {
    const old = trace.results.map((row) => ({
      ...row,
      samples: row.samples.map(({ round: _, ...sample }) => sample),
    }));
    const [row] = old as [(typeof old)[0]];
    expect([...loadAxis([row]).beginsMs]).toEqual([[0, 0]]);
    expect(reportPage({ ...trace, results: old } as BenchOutput<TraceRow>)).toContain('time counts from its first one');
    expect(reportPage(trace)).toMatch(/they take turns in 3 rounds, .* rounds begin at 0\.0, \d+\.\d, \d+\.\d s/);
  });
});
