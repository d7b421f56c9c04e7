import { randomBytes } from 'node:crypto';
import { capabilities } from '../../agent/native.js';
import { type Clock, SystemClock } from '../../clock.js';
import { type ResolvedConfig, resolveCacheTransceiverConfig } from '../../config/index.js';
import { LocalRankGroup } from '../../rank-group/local-rank-group.js';
import { messengerOptions, ZeromqMessenger } from '../../wire/index.js';
import { loadEngine } from '../engine/load-engine.js';
import { engineLabel, type ServeEngine } from '../engine/serve-engine.js';
import { LinkHost } from '../link/link-host.js';
import { checkServable } from '../servable.js';
import type { ServeLog } from '../serve-log.js';
import { RanksServer } from './ranks-server.js';
import { WorkerObservation } from './worker-observation.js';
import { WorkerRank } from './worker-rank.js';
import type { WorkerSettings } from './worker-settings.js';

/** How long `close` lets the last frames to fronts leave. */
const GOODBYE_LINGER_MS = 200;
/** How often `drained` looks whether the last request has ended. */
const DRAIN_POLL_MS = 20;

/**
 * Role: one server of `kv-transceiver serve`: all ranks of a context or generation instance in this process, and the link to the front.
 * Ownership: owns the ranks and the link; `close` ends them.
 */
export class ServeWorker {
  readonly #clock: Clock;
  readonly #ranks: readonly WorkerRank[];
  readonly #host: LinkHost;
  readonly #observation: WorkerObservation;
  #closing: Promise<void> | null = null;

  private constructor(clock: Clock, ranks: readonly WorkerRank[], host: LinkHost, observation: WorkerObservation) {
    this.#clock = clock;
    this.#ranks = ranks;
    this.#host = host;
    this.#observation = observation;
  }

  /**
   * @throws ConfigError for settings that do not go together, or a port in use
   * @throws CapabilityError for an agent that is not there
   */
  static async open(settings: WorkerSettings, log: ServeLog): Promise<ServeWorker> {
    const clock = new SystemClock();
    const config = await resolvedConfig(settings);
    const engine = await loadEngine(settings.engineModule, settings.group.engine, settings.group);
    const observation = new WorkerObservation({ config: config.config, clock, logger: log.logger });
    const ranks = await openRanks({ settings, config, clock, log, observation }, engine);
    try {
      const { listen, role } = settings;
      const messenger = await ZeromqMessenger.open({
        ...(await messengerOptions(config.config)),
        // The front that started this process is on this machine.
        ...(listen ?? { host: '127.0.0.1', port: 0, advertiseHost: null }),
        onWarning: (message) => log.warn(message),
      });
      const host = new LinkHost({
        clock,
        messenger,
        role,
        engine: engineLabel(engine),
        incarnation: randomBytes(8).readBigUInt64LE(),
        infoEndpoint: (ranks[0] as WorkerRank).endpoint,
        pid: process.pid,
        server: new RanksServer({
          executors: ranks.map(({ executor }) => executor),
          transferPolicy: {
            pipelined: config.config.enablePipelinedTransfer,
            earlyPrefix: config.config.enableEarlyPrefixTransfer,
          },
        }),
        metrics: () => observation.metrics(),
        onWarning: (message) => log.warn(message),
      });
      observation.showFronts(host);
      return new ServeWorker(clock, ranks, host, observation);
    } catch (error) {
      await Promise.allSettled(ranks.map((rank) => rank.close(0)));
      throw error;
    }
  }

  /** Where fronts reach it, `tcp://host:port`. */
  get endpoint(): string {
    return this.#host.endpoint;
  }

  /** Takes nothing new from now on. @returns when the requests under way have ended */
  async drain(): Promise<void> {
    this.#host.drain();
    while (this.#closing === null && this.#host.liveCalls > 0)
      await new Promise<void>((resolve) => this.#clock.setTimer(DRAIN_POLL_MS, resolve, { keepAlive: true }));
  }

  /** Idempotent. Requests that still run fail. */
  close(deadlineMs: number): Promise<void> {
    this.#closing ??= this.#close(deadlineMs);
    return this.#closing;
  }

  async #close(deadlineMs: number): Promise<void> {
    await Promise.all([
      this.#host.close(Math.min(GOODBYE_LINGER_MS, deadlineMs)),
      ...this.#ranks.map((rank) => rank.close(deadlineMs)),
    ]);
    this.#observation.close();
  }
}

async function resolvedConfig({ role, group, scheduleStyle }: WorkerSettings): Promise<ResolvedConfig> {
  checkServable(group);
  const { nixl } = await capabilities();
  // A server has a place where its metrics are read, and shows them unless the file says no.
  const given = { metrics: true, ...group.cacheTransceiverConfig };
  return resolveCacheTransceiverConfig(given, {
    nixlAvailable: nixl.available,
    ...(nixl.reason === null ? {} : { nixlReason: nixl.reason }),
    role,
    scheduleStyle,
    chunkedPrefillEffective: group.enableChunkedPrefill,
    beamWidth: group.maxBeamWidth,
  });
}

interface WorkerParts {
  readonly settings: WorkerSettings;
  readonly config: ResolvedConfig;
  readonly clock: Clock;
  readonly log: ServeLog;
  readonly observation: WorkerObservation;
}

async function openRanks(parts: WorkerParts, engine: ServeEngine): Promise<readonly WorkerRank[]> {
  const { settings, config, clock, observation } = parts;
  const { role, group } = settings;
  const { tokensPerBlock } = engine;
  const models = engine.ranks({ role, tensorParallelSize: group.tensorParallelSize });
  const ranks: WorkerRank[] = [];
  try {
    for (const [rank, model] of models.entries()) {
      const logging = observation.loggingOf(rank);
      const log = logging?.log ?? { warn: parts.log.warn, info: () => {} };
      const shared = { settings, config, clock, observation: observation.shared };
      ranks.push(await WorkerRank.open({ ...shared, model, tokensPerBlock, rank, logging, log }));
    }
    const groups = ranks.length === 1 ? [] : LocalRankGroup.of(ranks.length);
    const endpoints = ranks.map(({ endpoint }) => endpoint);
    for (const [index, rank] of ranks.entries()) rank.start(endpoints, groups[index] ?? null);
    return ranks;
  } catch (error) {
    await Promise.allSettled(ranks.map((rank) => rank.close(0)));
    throw error;
  }
}
