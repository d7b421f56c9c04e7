import { agentOptions } from '../../agent/agent-options.js';
import { createAgent } from '../../agent/native-agent.js';
import type { TransferAgent } from '../../agent/transfer-agent.js';
import { GrowingCacheManager } from '../../cache/growing-cache-manager.js';
import type { CacheGroupStats } from '../../cache/kv-cache-manager.js';
import type { Clock } from '../../clock.js';
import type { ResolvedConfig } from '../../config/index.js';
import { InternalError } from '../../errors.js';
import { Executor } from '../../executor/executor.js';
import type { ExecutorStats } from '../../executor/executor-options.js';
import { SINGLE_RANK } from '../../mapping/rank-place.js';
import { type OpenedTransceiver, openTransceiver } from '../../open-transceiver.js';
import type { RankGroup } from '../../rank-group/rank-group.js';
import type { KvCacheTransceiver, TransceiverLog, TransceiverStats } from '../../transceiver.js';
import { messengerOptions, ZeromqMessenger } from '../../wire/index.js';
import type { ServeRank } from '../engine/serve-engine.js';
import type { WorkerSettings } from './worker-settings.js';

export interface WorkerRankOptions {
  readonly settings: WorkerSettings;
  readonly config: ResolvedConfig;
  readonly model: ServeRank;
  readonly tokensPerBlock: number;
  readonly rank: number;
  readonly clock: Clock;
  readonly log: TransceiverLog;
}

/** A snapshot of one rank. */
export interface WorkerRankStats {
  readonly executor: ExecutorStats;
  readonly transceiver: TransceiverStats;
  readonly cache: readonly CacheGroupStats[];
}

/**
 * Role: one tensor parallel rank of a worker: agent, pools, cache manager, transceiver, engine and executor.
 * Ownership: owns all of them; `close` ends them in order.
 * Ordering: `start` makes the executor, when all ranks of the worker are open.
 */
export class WorkerRank {
  readonly endpoint: string;
  readonly #o: WorkerRankOptions;
  readonly #agent: TransferAgent;
  readonly #cache: GrowingCacheManager;
  readonly #transceiver: KvCacheTransceiver;
  readonly #pageTable: OpenedTransceiver['pageTable'];
  #executor: Executor | null = null;

  private constructor(
    options: WorkerRankOptions,
    agent: TransferAgent,
    cache: GrowingCacheManager,
    endpoint: string,
    opened: OpenedTransceiver,
  ) {
    this.#o = options;
    this.#agent = agent;
    this.#cache = cache;
    this.endpoint = endpoint;
    this.#transceiver = opened.transceiver;
    this.#pageTable = opened.pageTable;
  }

  /** @throws ConfigError for a port in use, CapabilityError for an agent that is not there */
  static async open(options: WorkerRankOptions): Promise<WorkerRank> {
    const { settings, config, model, tokensPerBlock, rank, log } = options;
    const name = settings.group.ranksPerInstance === 1 ? settings.name : `${settings.name}/${rank}`;
    const messenger = await ZeromqMessenger.open({
      ...(await messengerOptions(config.config)),
      onWarning: (message) => log.warn(message),
    });
    let agent: TransferAgent;
    try {
      agent = await createAgent({ ...agentOptions(config.config), name });
    } catch (error) {
      await messenger.close(0);
      throw error;
    }
    const { layerGroups, layout } = model;
    const cache = new GrowingCacheManager({ tokensPerBlock, layerGroups });
    const tpSize = settings.group.tensorParallelSize;
    const layers = layerGroups.reduce((sum, group) => sum + group.layers.length, 0);
    const opened = await openTransceiver({
      instanceName: settings.name,
      agent,
      messenger,
      cache,
      layout,
      config,
      log,
      place: { ...SINGLE_RANK, tpSize, tpRank: rank, layersPerStage: [layers] },
    });
    return new WorkerRank(options, agent, cache, messenger.endpoint, opened);
  }

  /** @param rankGroup null on a worker of one rank */
  start(endpoints: readonly string[], rankGroup: RankGroup | null): void {
    const { settings, config, model, clock, log } = this.#o;
    const { maxNumTokens } = settings.group;
    if (endpoints.length > 1) this.#transceiver.joinInstance(endpoints);
    const cache = this.#cache;
    this.#executor = new Executor({
      clock,
      cache,
      transceiver: this.#transceiver,
      engine: model.createEngine({ clock, agent: this.#agent, cache, pageTable: this.#pageTable }),
      limits: {
        chunkTokens: maxNumTokens,
        // One token for a decode step and one for a prompt.
        tokenBudget: Math.max(2, maxNumTokens),
        maxTokensInBuffer: config.config.maxTokensInBuffer,
      },
      schedule: settings.group.schedule,
      identity: { endpoint: this.endpoint, dpRank: 0 },
      kvTransferTimeoutMs: config.config.kvTransferTimeoutMs,
      events: { onWarning: (message) => log.warn(message) },
      ...(rankGroup === null ? {} : { rankGroup }),
    });
  }

  get executor(): Executor {
    if (this.#executor === null) throw new InternalError('the rank was not started');
    return this.#executor;
  }

  stats(): WorkerRankStats {
    return {
      executor: this.executor.stats(),
      transceiver: this.#transceiver.stats(),
      cache: this.#cache.stats(),
    };
  }

  async close(deadlineMs: number): Promise<void> {
    const closing = this.#executor?.close({ deadlineMs: Math.floor(deadlineMs / 2) });
    await this.#transceiver.close(deadlineMs);
    await closing;
  }
}
