import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { BenchOutput, TtftSample } from '../../src/cli/bench/output-contract.js';
import type { TraceFile } from '../../src/cli/bench/report/timeline-events.js';
import type { TraceRow } from '../../src/cli/bench/trace/trace-row.js';
import { runCli } from '../support/cli.js';
import { parseMarkup, tableCells } from '../support/markup.js';
import { recomputeTraceRow } from '../support/recompute.js';
import { validateTimeline } from '../support/timeline-file.js';

const TRACE = fileURLToPath(new URL('../data/traces/conversation-300.jsonl', import.meta.url));
/** llama-3.3-70b-tp8-rank: 80 layers, one KV head of 128, K and V, bfloat16. */
const BYTES_PER_TOKEN = 40_960;

// 15 s on two busy cores.
describe('bench trace', () => {
  let folder = '';
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'bench-trace-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it('replays 40 requests in every variant, refuses what never fits, and reports what it measured', async () => {
    const trace = join(folder, 'trace.jsonl');
    // Two that share all their tokens, and one that no pool can hold: its 9,000 tokens are 282 blocks.
    const ids = Array.from({ length: 282 }, (_, id) => 10_000 + id);
    const line = (timestamp: number, input_length: number, hash_ids: readonly number[]): string =>
      JSON.stringify({ timestamp, input_length, output_length: 64, hash_ids });
    const extra = [
      line(9500, 144_000, ids),
      line(9600, 3000, [1, 2, 3, 4, 5, 6]),
      line(9700, 3000, [1, 2, 3, 4, 5, 6]),
    ];
    writeFileSync(trace, [...readFileSync(TRACE, 'utf8').split('\n').slice(0, 37), ...extra].join('\n'));
    const report = join(folder, 'report <b>');
    const { code, stdout, stderr } = await runCli([
      ...['bench', 'trace', '--trace', trace, '--requests', '40', '--speed-up', '10', '--length-scale', '1/16'],
      ...['--pool-tokens', '8k', '--chunk', '128', '--link-gbps', '10', '--tflops', '2000', '--concurrency', '12'],
      ...['--json', '-', '--report', report],
    ]);
    expect(stderr).toMatch(/every byte planned was sent, arrived and is right/);
    expect(code).toBe(0);
    const output = JSON.parse(stdout) as BenchOutput<TraceRow>;
    expect(output).toMatchObject({
      schema: 1,
      bench: 'trace',
      interrupted: false,
      settings: { trace, requests: 40, speedUp: 10, lengthScale: 1 / 16, tokensPerHashId: 32, arrivalsOverMs: 970 },
      paths: [{ rank: 0, path: 'host' }],
    });
    expect(output.paths?.[0]?.reason).not.toBe('');
    expect(output.results.map(({ variant }) => variant)).toEqual(['monolithic', 'pipelined', 'pipelined-early-prefix']);
    for (const row of output.results) checkRow(row, output.results);

    // The same requests in all variants and rounds, each at its time.
    const [first] = output.results as readonly [TraceRow];
    for (const { samples, rounds } of output.results) {
      expect(rounds.map(({ requests }) => requests)).toEqual([13, 13, 14]);
      const byRequest = (all: TraceRow['samples']) => [...all].sort((a, b) => a.request - b.request);
      byRequest(samples).forEach((sample, index) => {
        const other = byRequest(first.samples)[index] as TtftSample;
        expect([sample.promptTokens, sample.round]).toEqual([other.promptTokens, other.round]);
        const sinceOf = (one: TtftSample, row: Pick<TraceRow, 'rounds'>): number =>
          one.arrivedAtMs - (row.rounds[one.round ?? -1]?.startedAtMs ?? Number.NaN);
        expect(sinceOf(sample, { rounds })).toBeCloseTo(sinceOf(other, first), 6);
      });
    }
    // In turns: no round of a variant begins before the others had the one before.
    const turns = output.results
      .flatMap(({ variant, rounds }) =>
        rounds.map(({ round, startedAtMs, durationMs }) => ({ variant, round, startedAtMs, durationMs })),
      )
      .sort((a, b) => a.startedAtMs - b.startedAtMs);
    expect(turns.map(({ round }) => round)).toEqual([0, 0, 0, 1, 1, 1, 2, 2, 2]);
    expect([0, 3, 6].map((index) => turns[index]?.variant)).toEqual([
      'monolithic',
      'pipelined',
      'pipelined-early-prefix',
    ]);
    turns.slice(1).forEach(({ startedAtMs }, index) => {
      const before = turns[index] as (typeof turns)[0];
      expect(startedAtMs).toBeGreaterThanOrEqual(before.startedAtMs + before.durationMs);
    });

    const page = parseMarkup(readFileSync(join(report, 'report.html'), 'utf8'));
    const [, ...cells] = tableCells(page, 'Under load: what became of the requests');
    expect(cells.map((row) => row.slice(0, 5))).toEqual(
      output.results.map(({ variant }) => [variant, '40', '39', '0', '1']),
    );
    expect(JSON.parse(readFileSync(join(report, 'figures.json'), 'utf8'))).toEqual(output);
    const timeline = JSON.parse(readFileSync(join(report, 'timeline.json'), 'utf8')) as TraceFile;
    validateTimeline(timeline);
    expect(timeline.traceEvents.filter(({ ph, cat }) => ph === 'b' && cat === 'request')).toHaveLength(3 * 39);
  });

  function checkRow(row: TraceRow, rows: readonly TraceRow[]): void {
    expect(row).toMatchObject({
      requests: 40,
      completed: 39,
      failed: 0,
      rejected: 1,
      wrongBytes: 0,
      slo: { ttftMs: 500, tbtMs: 50 },
    });
    expect(row.rejections[0]?.reason).toMatch(
      /RequestTooLargeError: request \d+ needs 282 blocks for 900[0-9] tokens, .* has 256/,
    );
    const again = recomputeTraceRow(row, rows, row.slo);
    expect(Object.fromEntries(Object.keys(again).map((key) => [key, row[key as keyof TraceRow]]))).toEqual(again);
    const done = row.samples.filter(({ outcome }) => outcome === 'completed');
    // The generation server finds nothing again: it gets every block of every prompt.
    expect(row.bytesVerified).toBe(
      done.reduce((total, { promptTokens }) => total + 32 * Math.ceil(promptTokens / 32) * BYTES_PER_TOKEN, 0),
    );
    expect([row.bytesSent, row.bytesPlanned]).toEqual([row.bytesVerified, row.bytesVerified]);
    // Whichever of the two is prefilled second finds whole blocks of the other: five, or as many as were computed when it was admitted. On
    // a machine that is busy both are admitted at once, and find nothing.
    const twins = done.filter(({ request }) => request >= 38);
    expect(twins.map((twin) => [twin.promptTokens, twin.generationCachedTokens])).toEqual([
      [188, 0],
      [188, 0],
    ]);
    expect([0, 32, 64, 96, 128, 160]).toContain(
      Math.max(...twins.map(({ contextCachedTokens }) => contextCachedTokens)),
    );
    for (const sample of done) {
      expect(sample.tokenGapsMs).toHaveLength(sample.generatedTokens - 1);
      expect(sample.slices).toBe(new Set(sample.timeline?.slices.map(({ seq }) => seq)).size);
      const { chunks = [], slices = [] } = sample.timeline ?? {};
      expect(chunks[0]?.tokenBegin).toBe(sample.contextCachedTokens);
      expect(chunks.at(-1)?.tokenEnd).toBe(sample.promptTokens);
      const early = slices.filter(({ kind }) => kind === 'early-prefix');
      expect(early.length).toBe(row.variant === 'pipelined-early-prefix' && sample.contextCachedTokens > 0 ? 1 : 0);
      expect(slices.reduce((total, { bytes }) => total + bytes, 0)).toBe(sample.bytesPlanned);
      if (row.variant === 'monolithic') expect(slices.map(({ kind }) => kind)).toEqual(['last']);
    }
    // All begin alike, and twelve run at a time.
    expect(row.requestsWithHit).toBeGreaterThan(10);
  }

  it.each([
    [['--trace', 'none.jsonl'], /--trace: none\.jsonl does not exist/],
    [['--pool-tokens', '16'], /--pool-tokens: 16 tokens are less than one block/],
    [['--pool-tokens', '1Gi'], /not enough memory: .*; lower --pool-tokens/],
    [['--report', '/proc/none/report'], /--report: \/proc\/none\/report cannot be written/],
    [['--report', TRACE], /--report: .*conversation-300\.jsonl is a file/],
  ])('refuses %j before anything starts', async (args, message) => {
    const { code, stdout, stderr } = await runCli(['bench', 'trace', ...args]);
    expect(stderr).toMatch(message);
    expect(stderr.trimEnd().split('\n')).toHaveLength(1);
    expect([code, stdout]).toEqual([2, '']);
  });

  it('does not pass when every request was refused', async () => {
    const { code, stdout } = await runCli(['bench', 'trace', '--pool-tokens', '64', '--requests', '3']);
    expect(stdout).toMatch(/NOT MET {2}completedRequests monolithic trace: 0 >= 1/);
    expect(stdout).not.toMatch(/every byte planned was sent/);
    expect(code).toBe(1);
  });

  it('makes the page of a run that is over, and refuses what no bench wrote', async () => {
    const from = fileURLToPath(new URL('../../bench/results/2-core-vm/dispatch-2026-11-30.json', import.meta.url));
    const report = join(folder, 'dispatch');
    expect(await runCli(['bench', 'report', '--from', from, '--report', report])).toMatchObject({ code: 0 });
    parseMarkup(readFileSync(join(report, 'report.html'), 'utf8'));
    for (const [content, why] of [
      ['', /is not JSON/],
      ['[]', /has schema undefined, this version reads 1/],
      ['{"schema": 2}', /has schema 2/],
      ['{"schema": 1}', /lacks bench/],
    ] as const) {
      const file = join(folder, 'broken.json');
      writeFileSync(file, content);
      const { code, stderr } = await runCli(['bench', 'report', '--from', file, '--report', report]);
      expect([code, stderr]).toEqual([2, expect.stringMatching(why)]);
    }
  });
});
