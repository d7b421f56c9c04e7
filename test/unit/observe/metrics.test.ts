import { Counter, Registry } from 'prom-client';
import { describe, expect, it } from 'vitest';
import { readBounceStats } from '../../../src/agent/bounce-stats.js';
import { ConfigError, TransferTimeoutError } from '../../../src/errors.js';
import { failureReason } from '../../../src/observe/failure-reason.js';
import { KvMetrics } from '../../../src/observe/kv-metrics.js';
import { METRICS } from '../../../src/observe/metric-catalogue.js';
import { TransferPair } from '../../sim-lite/transfer-pair.js';
import { ObservedTransfer, openToAnybody } from './observed-transfer.js';

/** Value of one series of a scrape; undefined when it is not there. */
async function scraped(metrics: KvMetrics): Promise<(series: string) => number | undefined> {
  const text = await metrics.registry.metrics();
  const values = new Map(
    text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => {
        const at = line.lastIndexOf(' ');
        return [line.slice(0, at).replace(/^kv_transceiver_/, ''), Number(line.slice(at + 1))] as const;
      }),
  );
  return (series) => values.get(series);
}

describe('metrics of a transfer', () => {
  it('count what ended, how long it took and how much it moved, at both ends', async () => {
    const pair = await TransferPair.create();
    const metrics = { context: new KvMetrics(), generation: new KvMetrics() };
    metrics.context.attach({ transceiver: pair.context.transceiver });
    metrics.generation.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    await transfer.whole();

    const [sent] = pair.context.settled;
    const [received] = pair.generation.settled;
    const bytes = sent?.timings.bytesDone ?? 0;
    expect(bytes).toBeGreaterThan(0);
    const context = await scraped(metrics.context);
    expect(context('transfers_total{side="context",outcome="completed"}')).toBe(1);
    expect(context('transfers_total{side="context",outcome="failed"}')).toBe(0);
    expect(context('transferred_bytes_total{side="context"}')).toBe(bytes);
    expect(context('transfer_bytes_sum{side="context"}')).toBe(bytes);
    const path = 'host';
    expect(context(`slices_total{path="${path}",status="transferred"}`)).toBe(2);
    expect(context(`slice_bytes_sum{path="${path}"}`)).toBe(bytes);
    expect(context(`slice_seconds_count{path="${path}"}`)).toBe(2);
    const { settledAtMs = 0, firstPostAtMs = 0, perSlice = [] } = sent?.timings ?? {};
    expect(context('transfer_seconds_sum{side="context"}')).toBeCloseTo((settledAtMs - (firstPostAtMs ?? 0)) / 1000, 9);
    expect(context('exposed_tail_seconds_count')).toBe(1);
    expect(context('exposed_tail_seconds_sum')).toBeCloseTo((settledAtMs - (perSlice[1]?.postedAtMs ?? 0)) / 1000, 9);
    expect(context('queue_seconds_count{side="context"}')).toBe(1);

    const generation = await scraped(metrics.generation);
    expect(generation('transfers_total{side="generation",outcome="completed"}')).toBe(1);
    expect(generation('transferred_bytes_total{side="generation"}')).toBe(received?.timings.bytesDone);
    expect(generation('queue_seconds_count{side="generation"}')).toBe(1);
    // From the request to the first slice: 100 ms until the first chunk, and what the frames took.
    expect(generation('queue_seconds_sum{side="generation"}')).toBeGreaterThanOrEqual(0.1);
    expect(generation('exposed_tail_seconds_count')).toBe(0);
  });

  it('show the states of now when they are scraped', async () => {
    const pair = await TransferPair.create();
    const metrics = new KvMetrics();
    metrics.attach({ transceiver: pair.context.transceiver });
    metrics.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(100);
    transfer.chunk(0, 8);
    await pair.run(20);
    const during = await scraped(metrics);
    expect(during('sessions{side="context",state="active"}')).toBe(1);
    expect(during('sessions{side="generation",state="receiving"}')).toBe(1);
    expect(during('pinned_requests')).toBe(2);
    expect(during('peers{state="verified"}')).toBe(2 - 1);
    expect(during('peers{state="accepted"}')).toBe(1);
    expect(during('aux_slots{state="used"}')).toBe(1);
    expect(during('aux_slots{state="free"}')).toBe(7);
    transfer.chunk(8, 16);
    await pair.run(300);
    const later = await scraped(metrics);
    expect(later('sessions{side="context",state="active"}')).toBe(0);
    expect(later('pinned_requests')).toBe(0);
    expect(later('aux_slots{state="used"}')).toBe(0);
  });

  it('tell failures by the clock that ran out', async () => {
    const pair = await TransferPair.create();
    const metrics = new KvMetrics();
    metrics.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    // The context server knows nothing of the request, and says so no more.
    await pair.run(200_000, 500);
    const [settled] = pair.generation.settled;
    expect(settled?.error?.code).toBe('ERR_KVT_TRANSFER_TIMEOUT');
    const { clock } = settled?.error?.details ?? {};
    const at = await scraped(metrics);
    const labels = `side="generation",code="ERR_KVT_TRANSFER_TIMEOUT",reason="${String(clock)}_clock"`;
    expect(at(`transfer_failures_total{${labels}}`)).toBe(1);
  });

  it.each([
    [{ clock: 'queue' }, 'queue_clock'],
    [{ clock: 'progress', remoteCode: 'ERR_KVT_TRANSPORT' }, 'progress_clock'],
    [{ remoteCode: 'ERR_KVT_TRANSPORT' }, 'remote'],
    // A peer's word may be anything.
    [{ remoteCode: 'ERR_OTHER' }, 'local'],
    [{ clock: 'sun' }, 'local'],
    [{}, 'local'],
  ])('a failure with %j is %s', (details, reason) => {
    expect(failureReason(new TransferTimeoutError('late', { details }))).toBe(reason);
  });

  it('count failures by class, refused frames by reason and retained pages that were released without proof', async () => {
    const { pair, deliver } = await openToAnybody();
    const metrics = new KvMetrics();
    metrics.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(100);
    transfer.chunk(0, 8);
    await pair.run(50);
    pair.kill(pair.context);
    await pair.run(4000);
    const lost = await scraped(metrics);
    expect(lost('transfers_total{side="generation",outcome="failed"}')).toBe(1);
    expect(lost('transfer_failures_total{side="generation",code="ERR_KVT_PEER_LOST",reason="local"}')).toBe(1);
    expect(lost('salvageable_tokens_total')).toBe(8);
    expect(lost('retained_sessions')).toBe(1);
    expect(lost('sessions{side="generation",state="failed"}')).toBe(1);
    expect(lost('unproven_releases_total{of="request"}')).toBe(0);
    await pair.run(11_000, 100);
    const released = await scraped(metrics);
    expect(released('retained_sessions')).toBe(0);
    expect(released('unproven_releases_total{of="request"}')).toBe(1);
    expect(released('events_total{event="peers_lost"}')).toBe(1);

    deliver('generation', Uint8Array.of(1, 2, 3));
    deliver('generation', new Uint8Array(64));
    const refused = await scraped(metrics);
    expect(refused('frames_refused_total{kind="wire_error",reason="truncated"}')).toBe(1);
    expect(refused('frames_refused_total{kind="wire_error",reason="bad-magic"}')).toBe(1);
    // Scraping again counts nothing again.
    expect((await scraped(metrics))('frames_refused_total{kind="wire_error",reason="truncated"}')).toBe(1);
  });
});

describe('a registry', () => {
  it('of the caller is filled beside what is there, and left without a trace', async () => {
    const registry = new Registry();
    new Counter({ name: 'mine_total', help: 'mine', registers: [registry] }).inc(3);
    const metrics = new KvMetrics({ registry });
    expect(metrics.registry).toBe(registry);
    expect(await registry.metrics()).toContain('mine_total 3');
    expect(() => new KvMetrics({ registry })).toThrow(ConfigError);
    metrics.close();
    expect(registry.getMetricsAsArray().map(({ name }) => name)).toEqual(['mine_total']);
    expect(() => new KvMetrics({ registry })).not.toThrow();
  });

  it('gives the same as JSON', async () => {
    const pair = await TransferPair.create();
    const metrics = new KvMetrics();
    metrics.attach({ transceiver: pair.context.transceiver });
    const json = await metrics.registry.getMetricsAsJSON();
    expect(json.map(({ name }) => name).toSorted()).toEqual(
      Object.values(METRICS)
        .map(({ name }) => name)
        .toSorted(),
    );
    const aux = json.find(({ name }) => name === 'kv_transceiver_aux_slots');
    expect(aux?.values).toEqual([
      { labels: { state: 'free' }, value: 4 },
      { labels: { state: 'used' }, value: 0 },
    ]);
  });

  it('keeps the totals of what was detached, and counts a new source from its own start', async () => {
    const metrics = new KvMetrics();
    for (let round = 1; round <= 3; round += 1) {
      const { pair, deliver } = await openToAnybody();
      const detach = metrics.attach({ transceiver: pair.context.transceiver });
      deliver('context', new Uint8Array(64));
      detach();
      detach();
      deliver('context', new Uint8Array(64));
      const series = await scraped(metrics);
      expect(series('frames_refused_total{kind="wire_error",reason="bad-magic"}')).toBe(round);
      expect(series('pinned_requests')).toBe(0);
      expect(pair.context.transceiver.stats().observers).toBe(0);
    }
  });
});

it('cache managers and arenas of several transceivers are summed', async () => {
  const pair = await TransferPair.create();
  const metrics = new KvMetrics();
  const group = { slotCount: 10, free: 4, reusable: 1, pinned: 2 };
  const numbers = Float64Array.of(100, 30, 2, 5, 1, 6, 0, 0, 4096, 8192, 3, 4, 7);
  const stats = { ...pair.context.transceiver.stats(), bounce: readBounceStats(numbers) };
  for (const cache of [[group], [group, { ...group, offloaded: 5 }]])
    metrics.attach({ transceiver: { observe: () => () => {}, stats: () => ({ ...stats, cache }) } });
  const series = await scraped(metrics);
  expect(series('cache_slot_capacity{group="0"}')).toBe(20);
  expect(series('cache_slots{group="0",state="free"}')).toBe(8);
  expect(series('cache_slots{group="1",state="pinned"}')).toBe(2);
  expect(series('cache_slots{group="1",state="offloaded"}')).toBe(5);
  expect(series('cache_slots{group="0",state="offloaded"}')).toBeUndefined();
  expect(series('arena_bytes{state="used"}')).toBe(48);
  expect(series('arena_bytes{state="free"}')).toBe(140);
  expect(series('arena_chunks{state="waiting"}')).toBe(10);
  expect(series('bounced_bytes_total{direction="scattered"}')).toBe(16_384);
  expect(series('bounce_refusals_total{direction="received"}')).toBe(8);
  expect(series('arena_bytes{state="lost"}')).toBe(12);
});

describe('the number of series', () => {
  it('does not grow with requests, peers or endpoints', async () => {
    const pair = await TransferPair.create();
    const metrics = new KvMetrics();
    metrics.attach({ transceiver: pair.context.transceiver });
    await new ObservedTransfer(pair).whole();
    const before = (await metrics.registry.metrics()).split('\n').length;
    for (let id = 2; id < 12; id += 1) await new ObservedTransfer(pair, id, { rid: (1n << 41n) + BigInt(id) }).whole();
    expect((await metrics.registry.metrics()).split('\n').length).toBe(before);
    expect(await metrics.registry.metrics()).not.toMatch(/tcp:|:\/\/|2199023255/);
  });

  it('is bounded also for names that come from counters', async () => {
    const metrics = new KvMetrics();
    const counters: Record<string, number> = {};
    for (let i = 0; i < 500; i += 1) counters[`stale:TYPE_${i}`] = 1;
    const pair = await TransferPair.create();
    const stats = pair.context.transceiver.stats();
    metrics.attach({ transceiver: { observe: () => () => {}, stats: () => ({ ...stats, counters }) } });
    const text = await metrics.registry.metrics();
    const series = text.match(/^kv_transceiver_frames_refused_total\{.*$/gm) ?? [];
    expect(series).toHaveLength(65);
    expect(series.at(-1)).toBe('kv_transceiver_frames_refused_total{kind="stale",reason="other"} 436');
  });
});
