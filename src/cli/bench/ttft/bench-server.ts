import type { PageContent } from '../../../agent/page-content.js';
import type { TransferAgent } from '../../../agent/transfer-agent.js';
import { chainBlockHashes } from '../../../cache/block-hash.js';
import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type { KvCacheManager, LayerGroup } from '../../../cache/kv-cache-manager.js';
import { SystemClock } from '../../../clock.js';
import { resolveCacheTransceiverConfig } from '../../../config/index.js';
import { PaceCurve } from '../../../executor/engines/pace-curve.js';
import { PacedEngine } from '../../../executor/engines/paced-engine.js';
import { Executor } from '../../../executor/executor.js';
import { buildPageTable } from '../../../mapping/build-page-table.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { type OpenedTransceiver, openTransceiver } from '../../../open-transceiver.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import type { KvCacheTransceiver, TransceiverLog } from '../../../transceiver.js';
import { ZeromqMessenger } from '../../../wire/zeromq-messenger.js';
import { openAgent } from '../open-agent.js';
import { presetNamed } from '../presets/index.js';
import { bytesPerTokenAndLayer, layerGroupsOf, type ModelPreset } from '../presets/model-preset.js';
import { ChunkClock } from './chunk-clock.js';
import { MeteredTransceiver } from './metered-transceiver.js';
import { PaddedContent } from './padded-content.js';
import type { WorkerSettings } from './worker-messages.js';

/** A bench request waits for the prefill of those before it; a minute more than a slow one takes. */
const TIMEOUTS = { transferQueueTimeoutMs: 600_000, noProgressTimeoutMs: 30_000, kvTransferTimeoutMs: 60_000 };

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
  readonly #log: ServerLog;

  private constructor(parts: {
    readonly settings: WorkerSettings;
    readonly agent: TransferAgent;
    readonly endpoint: string;
    readonly cache: KvCacheManager;
    readonly content: PageContent;
    readonly opened: OpenedTransceiver;
    readonly log: ServerLog;
    readonly onSettled: (settled: Settled) => void;
  }) {
    const { settings, agent, cache, content, opened } = parts;
    this.cache = cache;
    this.content = content;
    this.pageTable = opened.pageTable;
    this.endpoint = parts.endpoint;
    this.#transceiver = opened.transceiver;
    this.#log = parts.log;
    const curve = new PaceCurve(pacedModel(presetNamed(settings.model)), { effectiveFlops: settings.tflops * 1e12 });
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

  /** @throws ConfigError for a port in use, CapabilityError for an agent that is not there */
  static async open(settings: WorkerSettings, onSettled: (settled: Settled) => void): Promise<BenchServer> {
    const preset = presetNamed(settings.model);
    const { tokensPerBlock, slotCount } = settings;
    const layerGroups = layerGroupsOf(preset).map(
      ({ windowSize, layers }): LayerGroup => ({
        kind: preset.cache.kind,
        windowSize,
        tokensPerBlock,
        layers,
        slotCount,
      }),
    );
    const cache = new GrowingCacheManager({
      tokensPerBlock,
      layerGroups,
      // Two different orders, so that pages are scattered on both sides.
      seed: settings.seed * 2 + (settings.role === 'context' ? 0 : 1),
    });
    const layout = buildPageTable({
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
    const { device } = settings;
    const { agent, content } = await openAgent(
      settings.agent,
      settings.linkGbps,
      settings.role,
      device === undefined ? {} : { device },
    ).catch(async (error) => {
      await messenger.close(0);
      throw error;
    });
    const log = new ServerLog();
    const opened = await openTransceiver({
      instanceName: settings.role,
      agent,
      messenger,
      cache,
      layout,
      memory: device === undefined ? { kind: 'host' } : { kind: 'device', device },
      config: resolveCacheTransceiverConfig(
        { ...TIMEOUTS, enablePipelinedTransfer: true, backend: settings.agent === 'host' ? 'HOST' : 'NIXL' },
        { role: settings.role, scheduleStyle: 'generation_first', chunkedPrefillEffective: true, beamWidth: 1 },
      ),
      auxSlotCount: settings.concurrency + SPARE_AUX_SLOTS,
      log,
    });
    return new BenchServer({
      settings,
      agent,
      endpoint: messenger.endpoint,
      cache,
      content: new PaddedContent(content, tokensPerBlock),
      opened,
      log,
      onSettled,
    });
  }

  /** Requests whose pages a transfer may still touch. */
  get heldRequests(): number {
    return this.#transceiver.stats().held;
  }

  /** @returns whether nothing can touch the pools any more */
  async close(deadlineMs: number): Promise<boolean> {
    this.#log.silence();
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

/** Warnings on standard error, until the server is asked to end: both servers end together, and losing the other one is then no news. */
class ServerLog implements TransceiverLog {
  #isSilent = false;

  silence(): void {
    this.#isSilent = true;
  }

  warn(message: string): void {
    if (!this.#isSilent) process.stderr.write(`${message}\n`);
  }

  info(): void {}
}
