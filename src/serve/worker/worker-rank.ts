import { agentOptions } from '../../agent/agent-options.js';
import { createAgent } from '../../agent/native-agent.js';
import type { TransferAgent } from '../../agent/transfer-agent.js';
import { GrowingCacheManager } from '../../cache/growing-cache-manager.js';
import type { Clock } from '../../clock.js';
import type { ResolvedConfig } from '../../config/index.js';
import { InternalError } from '../../errors.js';
import { Executor } from '../../executor/executor.js';
import { SINGLE_RANK } from '../../mapping/rank-place.js';
import type { KvLogging } from '../../observe/kv-logging.js';
import type { Observation } from '../../observe/observation.js';
import { type OpenedTransceiver, openTransceiver } from '../../open-transceiver.js';
import type { RankGroup } from '../../rank-group/rank-group.js';
import type { KvCacheTransceiver, TransceiverLog } from '../../transceiver.js';
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
  /** Of all ranks; stays the caller's. */
  readonly observation: Observation;
  /** Null: `log` alone is told, and of warnings alone. */
  readonly logging: KvLogging | null;
  readonly log: TransceiverLog;
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
    const { settings, config, model, tokensPerBlock, rank, observation, logging, log } = options;
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
      observation,
      place: { ...SINGLE_RANK, tpSize, tpRank: rank, layersPerStage: [layers] },
    });
    logging?.attach({ transceiver: opened.transceiver });
    return new WorkerRank(options, agent, cache, messenger.endpoint, opened);
  }

  /** @param rankGroup null on a worker of one rank */
  start(endpoints: readonly string[], rankGroup: RankGroup | null): void {
    const { settings, config, model, clock, observation, logging, log } = this.#o;
    const { maxNumTokens } = settings.group;
    if (endpoints.length > 1) this.#transceiver.joinInstance(endpoints);
    const cache = this.#cache;
    const executor = new Executor({
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
      // The log lines have them already.
      events: logging === null ? { onWarning: (message) => log.warn(message) } : {},
      ...(rankGroup === null ? {} : { rankGroup }),
    });
    observation.attach({ executor });
    logging?.attach({ executor });
    this.#executor = executor;
  }

  get executor(): Executor {
    if (this.#executor === null) throw new InternalError('the rank was not started');
    return this.#executor;
  }

  async close(deadlineMs: number): Promise<void> {
    const closing = this.#executor?.close({ deadlineMs: Math.floor(deadlineMs / 2) });
    await this.#transceiver.close(deadlineMs);
    await closing;
  }
}
