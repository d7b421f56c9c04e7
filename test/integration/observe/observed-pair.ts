import { createAgent } from '../../../src/agent/native-agent.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import { SystemClock } from '../../../src/clock.js';
import { resolveCacheTransceiverConfig } from '../../../src/config/index.js';
import { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import { LocalServer } from '../../../src/coordinator/local-server.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import { TINY_MODEL, TinyEngine, TinyModel, tinyLayerGroups } from '../../../src/executor/engines/tiny/index.js';
import { Executor } from '../../../src/executor/executor.js';
import type { ScheduleStyle } from '../../../src/executor/request.js';
import { buildPageTable } from '../../../src/mapping/index.js';
import type { Observation } from '../../../src/observe/observation.js';
import { openTransceiver } from '../../../src/open-transceiver.js';
import { ZeromqMessenger } from '../../../src/wire/index.js';

const clock = new SystemClock();
const model = new TinyModel(TINY_MODEL);
const TOKENS_PER_BLOCK = 8;
export const CHUNK_TOKENS = 24;

async function openServer(role: 'context' | 'generation', observation: Observation | undefined) {
  const tokensPerBlock = TOKENS_PER_BLOCK;
  const layerGroups = tinyLayerGroups(TINY_MODEL, { tokensPerBlock, slotCount: 64 });
  const agent = await createAgent({ kind: 'host', name: `observed-${role}` });
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
      poolLayout: 'per-layer',
      blockLayout: 'HND',
    }),
    config: resolveCacheTransceiverConfig({ backend: 'HOST', enablePipelinedTransfer: true }, { role }),
    ...(observation === undefined ? {} : { observation }),
  });
  const engine = new TinyEngine({ clock, agent, cache, pageTable, model });
  const limits = { chunkTokens: CHUNK_TOKENS, tokenBudget: 64, maxTokensInBuffer: null };
  const executor = new Executor({ clock, cache, transceiver, engine, limits });
  observation?.attach({ executor });
  const server = new LocalServer({
    name: role,
    executor,
    infoEndpoint: messenger.endpoint,
    transferPolicy: { pipelined: true, earlyPrefix: true },
    onNotice: () => {},
  });
  return { server, executor, transceiver, endpoint: messenger.endpoint };
}

/** A context and a generation server of the tiny engine, over ZeroMQ and the host agent, with a coordinator. */
export async function openObservedPair(
  scheduleStyle: ScheduleStyle,
  observe: { readonly context?: Observation; readonly generation?: Observation; readonly coordinator?: Observation },
) {
  const context = await openServer('context', observe.context);
  const generation = await openServer('generation', observe.generation);
  const coordinator = new DisaggCoordinator({
    clock,
    ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9, nodeId: 0, processId: 0 }),
    context: context.server,
    generation: generation.server,
    scheduleStyle,
  });
  observe.coordinator?.attach({ coordinator });
  return {
    context,
    generation,
    coordinator,
    clock,
    close: async (deadlineMs = 5000) => {
      await coordinator.close({ deadlineMs: 5000 });
      await Promise.all([context, generation].map(({ executor }) => executor.close({ deadlineMs: 5000 })));
      await Promise.all([context, generation].map(({ transceiver }) => transceiver.close(deadlineMs)));
    },
  };
}

export type ObservedPair = Awaited<ReturnType<typeof openObservedPair>>;

/** A prompt of the tiny model. */
export function tinyPrompt(length: number, seed = 1): Uint32Array {
  return Uint32Array.from({ length }, (_, i) => (i * 31 + seed * 17) % TINY_MODEL.vocabularySize);
}
