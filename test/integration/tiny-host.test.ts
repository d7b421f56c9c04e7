import { describe, expect, it } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import { GrowingCacheManager } from '../../src/cache/growing-cache-manager.js';
import { SystemClock } from '../../src/clock.js';
import { resolveCacheTransceiverConfig } from '../../src/config/index.js';
import { DisaggCoordinator } from '../../src/coordinator/disagg-coordinator.js';
import { LocalServer } from '../../src/coordinator/local-server.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../src/coordinator/snowflake-ids.js';
import { createRequest } from '../../src/executor/create-request.js';
import { TINY_MODEL, TinyEngine, TinyModel, tinyLayerGroups } from '../../src/executor/engines/tiny/index.js';
import { Executor } from '../../src/executor/executor.js';
import type { ScheduleStyle } from '../../src/executor/request.js';
import { buildPageTable } from '../../src/mapping/index.js';
import { openTransceiver } from '../../src/open-transceiver.js';
import { ZeromqMessenger } from '../../src/wire/index.js';
import { seededRandom } from '../sim-lite/seeded-random.js';

const clock = new SystemClock();
const model = new TinyModel(TINY_MODEL);

async function openServer(role: 'context' | 'generation', tokensPerBlock: number) {
  const layerGroups = tinyLayerGroups(TINY_MODEL, { tokensPerBlock, slotCount: 256 / tokensPerBlock });
  const agent = await createAgent({ kind: 'host', name: `tiny-${role}` });
  const messenger = await ZeromqMessenger.open();
  const cache = new GrowingCacheManager({ tokensPerBlock, layerGroups });
  const { transceiver, pageTable } = await openTransceiver({
    instanceName: role,
    agent,
    messenger,
    cache,
    layout: buildPageTable({
      groups: layerGroups,
      kvHeads: TINY_MODEL.kvHeads,
      headDim: TINY_MODEL.headDim,
      dtype: 'bfloat16',
      poolLayout: role === 'context' ? 'per-layer' : 'per-block',
      blockLayout: 'HND',
    }),
    config: resolveCacheTransceiverConfig({ backend: 'HOST', enablePipelinedTransfer: true }, { role }),
  });
  const engine = new TinyEngine({ clock, agent, cache, pageTable, model });
  const limits = { chunkTokens: 24, tokenBudget: 64, maxTokensInBuffer: null };
  const executor = new Executor({ clock, cache, transceiver, engine, limits });
  const transferPolicy = { pipelined: true, earlyPrefix: true };
  const server = new LocalServer({
    name: role,
    executor,
    infoEndpoint: messenger.endpoint,
    transferPolicy,
    onNotice: () => {},
  });
  return {
    server,
    executor,
    close: () => Promise.all([executor.close({ deadlineMs: 5000 }), transceiver.close(5000)]),
  };
}

describe('tiny engine over ZeroMQ and the host agent', () => {
  it.each<ScheduleStyle>(['generation_first', 'context_first'])(
    'says what one server says, %s',
    async (scheduleStyle) => {
      const context = await openServer('context', 8);
      const generation = await openServer('generation', 4);
      const coordinator = new DisaggCoordinator({
        clock,
        ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9, nodeId: 0, processId: 0 }),
        context: context.server,
        generation: generation.server,
        scheduleStyle,
      });
      try {
        const random = seededRandom(7);
        const prompts = [70, 90, 41, 8, 1].map((length) =>
          Uint32Array.from({ length }, () => Math.floor(random() * TINY_MODEL.vocabularySize)),
        );
        // The second begins like the first, whose blocks are cached by then.
        prompts[1]?.set(prompts[0]?.subarray(0, 50) ?? []);
        const [first, ...others] = prompts as [Uint32Array, ...Uint32Array[]];
        const answers = [await coordinator.submit({ promptTokens: first, maxTokens: 9 }).result];
        const calls = others.map((promptTokens) => coordinator.submit({ promptTokens, maxTokens: 9 }));
        answers.push(...(await Promise.all(calls.map(({ result }) => result))));
        expect(answers.map(({ error }) => error)).toEqual(prompts.map(() => null));
        expect(answers.map(({ usage }) => usage.cachedTokens)).toEqual([0, 48, 0, 0, 0]);
        // All in one place, on the server that received nothing.
        const alone: (readonly number[])[] = [];
        for (const [index, promptTokens] of prompts.entries()) {
          const request = createRequest({ id: 1000 + index, promptTokens, maxTokens: 9 });
          await new Promise<void>((resolve) => context.executor.submit(request, { onFinished: () => resolve() }));
          alone.push([...request.outputTokens]);
        }
        expect(answers.map(({ outputTokens }) => outputTokens)).toEqual(alone);
      } finally {
        await coordinator.close({ deadlineMs: 5000 });
        await Promise.all([context.close(), generation.close()]);
      }
    },
  );
});
