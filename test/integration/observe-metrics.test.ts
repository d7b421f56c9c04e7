import { afterEach, describe, expect, it } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import { GrowingCacheManager } from '../../src/cache/growing-cache-manager.js';
import { resolveCacheTransceiverConfig } from '../../src/config/index.js';
import { TINY_MODEL, tinyLayerGroups } from '../../src/executor/engines/tiny/index.js';
import { buildPageTable } from '../../src/mapping/index.js';
import { createLogger } from '../../src/observe/create-logger.js';
import { Observation } from '../../src/observe/observation.js';
import { openTransceiver } from '../../src/open-transceiver.js';
import { ZeromqMessenger } from '../../src/wire/index.js';
import { type ObservedPair, openObservedPair, tinyPrompt } from './observe/observed-pair.js';

const CONFIG = { metrics: true, tracing: false } as const;
let pair: ObservedPair | null = null;
afterEach(async () => {
  await pair?.close();
  pair = null;
});

async function scraped({ metrics }: Observation): Promise<(series: string) => number> {
  const text = (await metrics?.registry.metrics()) ?? '';
  return (series) => {
    const line = text.split('\n').find((one) => one.startsWith(`kv_transceiver_${series} `));
    if (line === undefined) throw new Error(`no ${series} in\n${text}`);
    return Number(line.slice(line.lastIndexOf(' ') + 1));
  };
}

describe('metrics over ZeroMQ and the host agent', () => {
  it('agree with the outcomes, tokens and bytes of what ran, on all three parts', async () => {
    const lines: string[] = [];
    const logger = createLogger({ stream: { write: (line) => void lines.push(line) } });
    const [context, generation, coordinator] = [1, 2, 3].map(() => new Observation({ config: CONFIG, logger })) as [
      Observation,
      Observation,
      Observation,
    ];
    pair = await openObservedPair('generation_first', { context, generation, coordinator });
    const shared = tinyPrompt(70);
    const prompts = [shared, tinyPrompt(33, 2), shared];
    const results = [];
    for (const promptTokens of prompts) {
      const call = pair.coordinator.submit({ promptTokens, maxTokens: 4 });
      results.push(await call.result);
      await call.released;
    }
    expect(results.map(({ outcome }) => outcome)).toEqual(['completed', 'completed', 'completed']);
    const reused = results.reduce((sum, { usage }) => sum + usage.cachedTokens, 0);
    expect(reused).toBeGreaterThanOrEqual(56);
    // One that its user leaves.
    const left = pair.coordinator.submit({ promptTokens: tinyPrompt(100, 3), maxTokens: 50 });
    left.cancel();
    expect((await left.result).outcome).toBe('cancelled');
    await left.released;

    const atContext = await scraped(context);
    expect(atContext('requests_total{role="context",outcome="completed"}')).toBe(3);
    expect(atContext('transfers_total{side="context",outcome="completed"}')).toBe(3);
    expect(atContext('exposed_tail_seconds_count')).toBe(3);
    expect(atContext('prefill_seconds_count')).toBeGreaterThanOrEqual(3);
    expect(atContext('prompt_tokens_total{source="reused"}')).toBe(reused);
    expect(atContext('prompt_tokens_total{source="computed"}')).toBeGreaterThanOrEqual(173 - reused);
    expect(atContext('slices_total{path="host",status="transferred"}')).toBeGreaterThanOrEqual(3 + 2);
    expect(atContext('control_frames_total{direction="sent"}')).toBeGreaterThan(10);
    expect(atContext('control_bytes_total{direction="received"}')).toBeGreaterThan(1000);
    expect(atContext('cache_slot_capacity{group="0"}')).toBe(64);

    const atGeneration = await scraped(generation);
    expect(atGeneration('requests_total{role="generation",outcome="completed"}')).toBe(3);
    expect(atGeneration('requests_total{role="generation",outcome="cancelled"}')).toBe(1);
    expect(atGeneration('output_tokens_total')).toBe(12);
    expect(atGeneration('time_to_first_token_seconds_count{scope="server"}')).toBe(3);
    expect(atGeneration('transferred_bytes_total{side="generation"}')).toBe(
      atContext('transferred_bytes_total{side="context"}'),
    );
    expect(atGeneration('pinned_requests')).toBe(0);

    const atCoordinator = await scraped(coordinator);
    expect(atCoordinator('coordinator_requests_total{outcome="completed"}')).toBe(3);
    expect(atCoordinator('coordinator_requests_total{outcome="cancelled"}')).toBe(1);
    expect(atCoordinator('coordinator_retries_total')).toBe(0);
    expect(atCoordinator('time_to_first_token_seconds_count{scope="coordinator"}')).toBe(3);
    expect(atCoordinator('coordinator_servers{role="context",phase="ready"}')).toBe(1);
    expect(atCoordinator('coordinator_live_requests')).toBe(0);

    const ended = (msg: string) =>
      lines.map((line) => JSON.parse(line) as Record<string, unknown>).filter((line) => line['msg'] === msg);
    expect(ended('coordinated request ended').map(({ outcome }) => outcome)).toEqual([
      'completed',
      'completed',
      'completed',
      'cancelled',
    ]);
    expect(ended('request ended')).toHaveLength(8);
    const rids = new Set(ended('transfer ended').map(({ rid }) => rid));
    for (const { id } of results) expect(rids).toContain(id.toString());
    // No token of any prompt.
    expect(lines.join('')).not.toContain([...shared.subarray(0, 5)].join(','));
  });

  it('executor.dump and coordinator.stats are JSON', async () => {
    pair = await openObservedPair('generation_first', {});
    const call = pair.coordinator.submit({ promptTokens: tinyPrompt(90), maxTokens: 20 });
    const dump = pair.generation.executor.dump();
    expect(JSON.parse(JSON.stringify(dump))).toEqual(dump);
    expect(dump.requests).toMatchObject([
      {
        request: 1,
        rid: call.id.toString(),
        role: 'generation',
        promptTokens: 90,
        outcome: null,
        isCancelRequested: false,
      },
    ]);
    expect(pair.generation.executor.dump({ maxEntries: 0 })).toMatchObject({ requests: [], leftOut: 1 });
    const stats = pair.coordinator.stats();
    expect(JSON.parse(JSON.stringify(stats))).toEqual(stats);
    expect(stats).toMatchObject({ live: 1, context: [{ name: 'context', phase: 'ready', liveRequests: 1 }] });
    await call.result;
    await call.released;
    expect(pair.generation.executor.dump().requests).toEqual([]);
    expect(pair.coordinator.stats().live).toBe(0);
  });

  it('come with openTransceiver when the configuration asks for them, with the fallback that it made', async () => {
    const layerGroups = tinyLayerGroups(TINY_MODEL, { tokensPerBlock: 8, slotCount: 8 });
    const { transceiver, observation } = await openTransceiver({
      instanceName: 'configured',
      agent: await createAgent({ kind: 'host', name: 'configured' }),
      messenger: await ZeromqMessenger.open(),
      cache: new GrowingCacheManager({ tokensPerBlock: 8, layerGroups }),
      layout: buildPageTable({
        groups: layerGroups,
        kvHeads: TINY_MODEL.kvHeads,
        headDim: TINY_MODEL.headDim,
        dtype: 'bfloat16',
        poolLayout: 'per-layer',
        blockLayout: 'HND',
      }),
      config: resolveCacheTransceiverConfig({ metrics: true }, { nixlAvailable: false, nixlReason: 'not installed' }),
    });
    try {
      if (observation === null) throw new Error('nothing observes');
      const series = await scraped(observation);
      expect(series('fallbacks_total{source="backend"}')).toBe(1);
      expect(series('aux_slots{state="free"}')).toBe(256);
      const { fallbacks } = transceiver.stats();
      expect(fallbacks).toEqual([{ source: 'backend', message: expect.stringContaining('not installed') }]);
      observation.close();
      expect(transceiver.stats().observers).toBe(0);
    } finally {
      await transceiver.close(1000);
    }
    // A snapshot of what is closed is still one.
    expect(JSON.parse(JSON.stringify(transceiver.dump()))).toMatchObject({ lifecycle: 'closed', send: [] });
  });
});
