import { randomBytes } from 'node:crypto';
import type { PageContent } from '../../../agent/page-content.js';
import type { TransferAgent } from '../../../agent/transfer-agent.js';
import { chainBlockHashes } from '../../../cache/block-hash.js';
import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type { KvCacheManager, LayerGroup } from '../../../cache/kv-cache-manager.js';
import { SystemClock } from '../../../clock.js';
import { PaceCurve } from '../../../executor/engines/pace-curve.js';
import { PacedEngine } from '../../../executor/engines/paced-engine.js';
import { Executor } from '../../../executor/executor.js';
import { buildPageTable, rebasePageTable, withAux } from '../../../mapping/build-page-table.js';
import type { PageTable } from '../../../mapping/page-table.js';
import type { RankInfo } from '../../../mapping/rank-info.js';
import { AUX_SLOT_BYTES, AuxBuffer } from '../../../session/aux-buffer.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import { KvCacheTransceiver } from '../../../transceiver.js';
import { ZeromqMessenger } from '../../../wire/zeromq-messenger.js';
import { packageVersion } from '../machine-info.js';
import { openAgent } from '../open-agent.js';
import { presetNamed } from '../presets/index.js';
import { bytesPerTokenAndLayer, layerGroupsOf, type ModelPreset } from '../presets/model-preset.js';
import { ChunkClock } from './chunk-clock.js';
import { MeteredTransceiver } from './metered-transceiver.js';
import { PaddedContent } from './padded-content.js';
import type { WorkerSettings } from './worker-messages.js';

/** A bench request waits for the prefill of those before it; a minute more than a slow one takes. */
const LIMITS = { transferQueueTimeoutMs: 600_000, noProgressTimeoutMs: 30_000, kvTransferTimeoutMs: 60_000 };

/** Aux slots beyond the requests in flight: a slot returns only when its request has drained. */
const SPARE_AUX_SLOTS = 8;

/**
 * Role: one server of the bench: pools, agent, cache manager, transceiver, executor and the paced engine, as an engine would wire them.
 * Ownership: owns all of them; `close` ends them in order.
 */
export class BenchServer {
  readonly clock = new SystemClock();
  readonly cache: KvCacheManager;
  readonly content: PageContent;
  readonly pageTable: PageTable;
  readonly executor: Executor;
  readonly chunkClock: ChunkClock;
  readonly endpoint: string;
  readonly #transceiver: KvCacheTransceiver;

  private constructor(parts: {
    readonly settings: WorkerSettings;
    readonly agent: TransferAgent;
    readonly messenger: ZeromqMessenger;
    readonly cache: KvCacheManager;
    readonly content: PageContent;
    readonly aux: AuxBuffer;
    readonly rankInfo: RankInfo;
    readonly onSettled: (settled: Settled) => void;
  }) {
    const { settings, agent, messenger, cache, content, aux, rankInfo } = parts;
    const preset = presetNamed(settings.model);
    this.cache = cache;
    this.content = content;
    this.pageTable = rankInfo.pageTable;
    this.endpoint = messenger.endpoint;
    this.#transceiver = new KvCacheTransceiver({
      agent,
      messenger,
      cache,
      aux,
      clock: this.clock,
      limits: LIMITS,
      rankInfo,
      newTicket: randomUint64,
      log: { warn: logLine, info: () => {} },
    });
    const curve = new PaceCurve(pacedModel(preset), { effectiveFlops: settings.tflops * 1e12 });
    const engine = new PacedEngine({ clock: this.clock, agent, content, cache, pageTable: this.pageTable, curve });
    this.chunkClock = new ChunkClock(engine, this.clock);
    this.executor = new Executor({
      clock: this.clock,
      cache,
      transceiver: new MeteredTransceiver(this.#transceiver, parts.onSettled),
      engine: this.chunkClock,
      limits: {
        chunkTokens: settings.chunkTokens,
        tokenBudget: Math.max(2, settings.chunkTokens),
        maxTokensInBuffer: null,
      },
      blockHashesOf: (request) => chainBlockHashes(request.promptTokens, cache.tokensPerBlock),
    });
  }

  static async open(settings: WorkerSettings, onSettled: (settled: Settled) => void): Promise<BenchServer> {
    const preset = presetNamed(settings.model);
    const layerGroups = layerGroupsOf(preset).map(
      ({ windowSize, layers }): LayerGroup => ({
        kind: preset.cache.kind,
        windowSize,
        tokensPerBlock: settings.tokensPerBlock,
        layers,
        slotCount: settings.slotCount,
      }),
    );
    const { table, sizeBytes } = buildPageTable({
      groups: layerGroups,
      ...(preset.cache.kind === 'attention'
        ? { kvHeads: preset.cache.kvHeads, headDim: preset.cache.headDim }
        : { kvHeads: 1, headDim: 1, latentDim: preset.cache.latentDim + preset.cache.ropeDim }),
      dtype: preset.dtype,
      poolLayout: settings.poolLayout,
      blockLayout: 'HND',
    });

    // The port first: it is what most often cannot be had, and costs nothing to give back.
    const messenger = await ZeromqMessenger.open({ port: settings.listenPort });
    try {
      const { agent, content } = await openAgent(settings.agent, settings.linkGbps, settings.role);
      const pool = await agent.allocatePool({ sizeBytes });
      const auxSlotCount = settings.concurrency + SPARE_AUX_SLOTS;
      const auxPool = await agent.allocatePool({ sizeBytes: auxSlotCount * AUX_SLOT_BYTES });
      const aux = new AuxBuffer(agent, auxPool.base, auxSlotCount);
      const pageTable = withAux(rebasePageTable(table, pool.base), {
        base: auxPool.base,
        slotBytes: AUX_SLOT_BYTES,
        slotCount: auxSlotCount,
      });
      const rankInfo: RankInfo = {
        packageVersion: packageVersion(),
        instanceName: `bench-${settings.role}`,
        incarnation: randomUint64(),
        ...{ rank: 0, tpSize: 1, tpRank: 0, ppSize: 1, ppRank: 0, cpSize: 1, cpRank: 0, dpSize: 1, dpRank: 0 },
        attentionDp: false,
        layersPerStage: [preset.layerCount],
        endpoint: messenger.endpoint,
        agent: agent.kind,
        agentMetadata: await agent.metadata(),
        pageTable,
      };
      const cache = new GrowingCacheManager({
        tokensPerBlock: settings.tokensPerBlock,
        layerGroups,
        // Two different orders, so that pages are scattered on both sides.
        seed: settings.seed * 2 + (settings.role === 'context' ? 0 : 1),
      });
      const padded = new PaddedContent(content, settings.tokensPerBlock);
      return new BenchServer({ settings, agent, messenger, cache, content: padded, aux, rankInfo, onSettled });
    } catch (error) {
      await messenger.close(0);
      throw error;
    }
  }

  /** @returns whether nothing can touch the pools any more */
  async close(deadlineMs: number): Promise<boolean> {
    const closing = this.executor.close({ deadlineMs: Math.floor(deadlineMs / 2) });
    const report = await this.#transceiver.close(deadlineMs);
    await closing;
    return report.drained;
  }
}

function pacedModel(preset: ModelPreset): ConstructorParameters<typeof PaceCurve>[0] {
  return {
    activeParameters: preset.activeParameterCount,
    attentionHeads: preset.attentionHeads,
    headDim: preset.attentionHeadDim,
    layers: layerGroupsOf(preset).map(({ windowSize, layers }) => ({ windowSize, count: layers.length })),
    kvBytesPerTokenAndLayer: bytesPerTokenAndLayer(preset),
  };
}

function randomUint64(): bigint {
  return randomBytes(8).readBigUInt64LE();
}

function logLine(message: string): void {
  process.stderr.write(`${message}\n`);
}
