import { randomBytes } from 'node:crypto';
import type { TransferAgent } from './agent/transfer-agent.js';
import type { KvCacheManager } from './cache/kv-cache-manager.js';
import { type Clock, SystemClock } from './clock.js';
import type { CacheTransceiverConfig, ResolvedConfig } from './config/index.js';
import { ArgumentError, ConfigError } from './errors.js';
import {
  checkPlace,
  flatRank,
  type PageTable,
  type PoolMemory,
  type RankInfo,
  type RankPlaceInDp,
  rebasePageTable,
  SINGLE_RANK,
  withAux,
} from './mapping/index.js';
import { Observation } from './observe/observation.js';
import { PACKAGE_VERSION } from './package-version.js';
import { AUX_SLOT_BYTES, AuxBuffer } from './session/aux-buffer.js';
import type { FallbackNotice } from './session/transfer-observer.js';
import { KvCacheTransceiver, type TransceiverLog } from './transceiver.js';
import { instanceNameProblem, type Messenger } from './wire/index.js';

/** Parts of one rank of a server. */
export interface OpenTransceiverOptions {
  /** Names this server in its peers' error messages. */
  readonly instanceName: string;
  /** Owned by the transceiver from now on, also when opening fails. */
  readonly agent: TransferAgent;
  /** Owned by the transceiver from now on, also when opening fails. */
  readonly messenger: Messenger;
  readonly cache: KvCacheManager;
  /**
   * Where this rank stands in its instance. Default: the only rank. One of several (tpSize x ppSize x cpSize > 1) serves nobody before
   * `KvCacheTransceiver.joinInstance`.
   */
  readonly place?: RankPlaceInDp;
  /** What `buildPageTable` gave for the cache manager's layer groups. */
  readonly layout: { readonly table: PageTable; readonly sizeBytes: number };
  /** Where the pages are allocated; the aux buffer is host memory always. Default: where the layout's pools say they are. */
  readonly memory?: { readonly kind: 'host' } | { readonly kind: 'device'; readonly device: number };
  /** From `resolveCacheTransceiverConfig`; its warnings go to `log`. */
  readonly config: ResolvedConfig;
  /** Requests that can have aux content on the way at once. Default 256. */
  readonly auxSlotCount?: number;
  readonly clock?: Clock;
  /** Default: the observation's, if it has a logger. */
  readonly log?: TransceiverLog;
  /** Attached to the transceiver. Default: one made of the settings `metrics` and `tracing`, when one of them is on. */
  readonly observation?: Observation;
}

/** A transceiver over freshly allocated pools. */
export interface OpenedTransceiver {
  readonly transceiver: KvCacheTransceiver;
  /** Where the pages are: the layout at its real addresses, for engines that write them. */
  readonly pageTable: PageTable;
  /** What observes the transceiver; executors and coordinators are attached by whoever has them. Null: nothing does. */
  readonly observation: Observation | null;
}

const SILENT: TransceiverLog = { warn: () => {}, info: () => {} };

/**
 * Allocates the pools of one rank, registers them, and puts a transceiver on top.
 * @throws ConfigError when agent and configuration disagree
 * @throws ArgumentError for a place outside its instance, or a name that peers refuse
 * @throws ResourceError when the pools cannot be allocated
 */
export async function openTransceiver(options: OpenTransceiverOptions): Promise<OpenedTransceiver> {
  const { agent, messenger, cache, layout, instanceName } = options;
  const { config, warnings } = options.config;
  const { auxSlotCount = 256, clock = new SystemClock() } = options;
  try {
    const observation = options.observation ?? observationOf(config, clock);
    const log = options.log ?? observation?.logging?.log ?? SILENT;
    if (agent.kind !== 'sim' && agent.kind !== config.backend.toLowerCase())
      throw new ConfigError(
        `backend is ${config.backend}, but the agent is ${agent.kind}: create the agent that the configuration names`,
      );
    if (options.place !== undefined) checkPlace(options.place, 'place');
    const problem = instanceNameProblem(instanceName);
    if (problem !== null) throw new ArgumentError(`instanceName ${problem}, so that peers would refuse this rank`);
    for (const { setting, message } of warnings) log.warn(`${setting}: ${message}`);
    const fallbacks = warnings.map(({ setting, message }): FallbackNotice => {
      return { source: setting === 'backend' ? 'backend' : 'config', message: `${setting}: ${message}` };
    });
    const memory = pageMemory(options);
    const pool = await agent.allocatePool({
      sizeBytes: layout.sizeBytes,
      ...(memory.kind === 'device' ? { device: memory.deviceId } : {}),
    });
    const auxPool = await agent.allocatePool({ sizeBytes: auxSlotCount * AUX_SLOT_BYTES });
    const pageTable = withAux(rebasePageTable(placedIn(layout.table, memory), pool.base), {
      base: auxPool.base,
      slotBytes: AUX_SLOT_BYTES,
      slotCount: auxSlotCount,
    });
    const place = options.place ?? { ...SINGLE_RANK, layersPerStage: [countLayers(pageTable)] };
    const isAlone = place.tpSize * place.ppSize * place.cpSize === 1;
    const rankInfo: RankInfo = {
      packageVersion: PACKAGE_VERSION,
      instanceName,
      incarnation: randomId(),
      ...ownPlace(place),
      rank: flatRank(place),
      endpoint: messenger.endpoint,
      rankEndpoints: isAlone ? [messenger.endpoint] : [],
      agent: agent.kind,
      agentMetadata: await agent.metadata(),
      pageTable,
    };
    const aux = new AuxBuffer(agent, auxPool.base, auxSlotCount);
    const transceiver = new KvCacheTransceiver({
      agent,
      messenger,
      cache,
      aux,
      clock,
      limits: config,
      rankInfo,
      newTicket: randomId,
      log,
      fallbacks,
    });
    observation?.attach({ transceiver });
    return { transceiver, pageTable, observation };
  } catch (error) {
    await Promise.allSettled([agent.close(1000), messenger.close(0)]);
    throw error;
  }
}

function observationOf(config: CacheTransceiverConfig, clock: Clock): Observation | null {
  return config.metrics || config.tracing ? new Observation({ config, clock }) : null;
}

/** Exactly the fields of a place, whatever else the object carries. */
function ownPlace(place: RankPlaceInDp): RankPlaceInDp {
  const { tpSize, tpRank, ppSize, ppRank, cpSize, cpRank, dpSize, dpRank, attentionDp, layersPerStage } = place;
  return { tpSize, tpRank, ppSize, ppRank, cpSize, cpRank, dpSize, dpRank, attentionDp, layersPerStage };
}

/** @throws ConfigError when the layout's pools are in several places and the options name none */
function pageMemory({ memory, layout }: OpenTransceiverOptions): PoolMemory {
  if (memory !== undefined) return memory.kind === 'host' ? memory : { kind: 'device', deviceId: memory.device };
  const [first, ...others] = layout.table.pools.map((pool) => pool.memory);
  if (first === undefined) return { kind: 'host' };
  if (others.some((other) => placeOf(other) !== placeOf(first)))
    throw new ConfigError('memory: the pools of the layout are in several places, but they are allocated together');
  return first;
}

function placeOf(memory: PoolMemory): number {
  return memory.kind === 'host' ? -1 : memory.deviceId;
}

function placedIn(table: PageTable, memory: PoolMemory): PageTable {
  return { ...table, pools: table.pools.map((pool) => ({ ...pool, memory })) };
}

/** 64 random bits, never 0. */
function randomId(): bigint {
  return randomBytes(8).readBigUInt64LE() || 1n;
}

function countLayers(table: PageTable): number {
  const layers = new Set<number>();
  for (const group of table.layerGroups)
    for (const view of group.views) for (const entry of view.layers) layers.add(entry.layer);
  return layers.size;
}
