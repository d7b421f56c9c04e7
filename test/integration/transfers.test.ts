import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { HANG_LIMIT_MS } from '../support/deadline.js';
import type { MemorySample, StreamReport, StreamSettings } from './faults/server-messages.js';
import { ServerPair, ServerPrograms } from './faults/server-pair.js';

/** `KV_TRANSCEIVER_TRANSFERS=100000` for the long run. */
const TRANSFERS = Number(process.env['KV_TRANSCEIVER_TRANSFERS'] ?? 20_000);
/** The first samples see caches and lazily compiled code grow. */
const WARM_UP = 2000;
const SAMPLE_EVERY = 1000;
/** A context server remembers so many ended requests and their reports, for late frames; see the session classes. */
const REMEMBERED = 65_536;
const REMEMBERED_BYTES = 400;
/** What a heap that is collected before each sample may differ by. */
const HEAP_SLACK_BYTES = 2 ** 20;
/** Pages that the allocators keep. */
const RSS_SLACK_BYTES = 24 * 2 ** 20;
/** Against hangs: a transfer takes less than a millisecond. */
const HANG_MS = HANG_LIMIT_MS + 30 * TRANSFERS;
const PROMPT_TOKENS = 20;
/** Two full layers of 5 blocks and a windowed one, whose last 10 of 20 tokens lie in 3 blocks; keys and values of 8 two-byte elements. */
const BYTES_PER_REQUEST = (2 * 5 + 3) * 4 * 2 * 8 * 2;

describe(`${TRANSFERS} transfers in a row, host agent`, () => {
  const programs = new ServerPrograms();
  let pair: ServerPair | null = null;
  afterAll(() => programs.remove());
  afterEach(() => pair?.kill());

  it(
    'keep memory, descriptors and handles flat',
    async () => {
      pair = await ServerPair.start(programs.entry, { headDim: 8, pageCount: 400 });
      const { context, generation } = pair;
      const stream: StreamSettings = {
        firstRid: (1n << 43n).toString(),
        count: TRANSFERS,
        concurrency: 16,
        promptTokens: PROMPT_TOKENS,
        chunkTokens: 8,
        endpoint: '',
        sampleEvery: SAMPLE_EVERY,
      };
      const reports = await Promise.all([
        context.stream(stream, HANG_MS),
        generation.stream({ ...stream, endpoint: context.endpoint }, HANG_MS),
      ]);
      for (const report of reports) {
        expect(report.firstError).toBeNull();
        expect(report).toMatchObject({ completed: TRANSFERS, failed: 0, wrongBytes: 0 });
      }
      expect(reports[1].bytesChecked).toBe(TRANSFERS * BYTES_PER_REQUEST);
      expectFlat('context', reports[0], REMEMBERED_BYTES);
      expectFlat('generation', reports[1], 0);
      await Promise.all([pair.expectClean(context), pair.expectClean(generation)]);
      await pair.close();
    },
    2 * HANG_MS,
  );
});

function expectFlat(side: string, report: StreamReport, bytesPerRemembered: number): void {
  const { samples } = report;
  const last = samples.at(-1) as MemorySample;
  const remembered = (requests: number): number => Math.min(requests, REMEMBERED) * bytesPerRemembered;
  const told = figures(side, report);
  process.stderr.write(`${told}\n`);
  // From the end of the warm-up, and from where nothing more is remembered: there the curve is flat.
  for (const from of [WARM_UP, REMEMBERED + WARM_UP]) {
    const first = samples.find(({ requests }) => requests >= from);
    if (first === undefined || first === last) continue;
    const allowed = HEAP_SLACK_BYTES + remembered(last.requests) - remembered(first.requests);
    expect(last.heapBytes - first.heapBytes, `heap, ${told}`).toBeLessThanOrEqual(allowed);
    expect(last.externalBytes - first.externalBytes, `buffers, ${told}`).toBeLessThanOrEqual(HEAP_SLACK_BYTES);
    expect(last.rssBytes - first.rssBytes, `rss, ${told}`).toBeLessThanOrEqual(allowed + RSS_SLACK_BYTES);
    expect(last.descriptors, `descriptors, ${told}`).toBeLessThanOrEqual(first.descriptors);
    expect(last.resources, `handles, ${told}`).toBeLessThanOrEqual(first.resources);
  }
}

/** One line that a log keeps of a run. */
function figures(side: string, { samples, durationMs }: StreamReport): string {
  const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
  const marks = [WARM_UP, REMEMBERED + WARM_UP, TRANSFERS]
    .flatMap((from) => samples.find(({ requests }) => requests >= from) ?? [])
    .map((at) => `${at.requests}: heap ${mib(at.heapBytes)} MiB, rss ${mib(at.rssBytes)} MiB, ${at.descriptors} files`);
  return `${side}, ${TRANSFERS} transfers in ${(durationMs / 1000).toFixed(0)} s; after ${marks.join('; after ')}`;
}
