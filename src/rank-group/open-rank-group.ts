import { randomBytes } from 'node:crypto';
import { type Clock, SystemClock } from '../clock.js';
import { ConfigError } from '../errors.js';
import { type CurveOptions, parseEndpoint } from '../wire/index.js';
import { MAX_RANKS } from './group-frame.js';
import { openGroupMessenger } from './group-messenger.js';
import { HubRankGroup } from './hub-rank-group.js';
import { MemberRankGroup } from './member-rank-group.js';
import { type RankGroup, SINGLE_RANK_GROUP } from './rank-group.js';

/** One process per rank. The same on all ranks but for `rank` and `host`. */
export interface RankGroupOptions {
  readonly rank: number;
  readonly size: number;
  /** Chosen at random by whoever starts the ranks, for each run: a rank of another instance or of an earlier run cannot join. Not 0. */
  readonly nonce: bigint;
  /** `tcp://host:port` where rank 0 listens. */
  readonly rank0Endpoint: string;
  /** Where this rank listens; default: rank 0's host on rank 0, else 127.0.0.1. */
  readonly host?: string;
  /** What the other ranks reach this one by; needed when `host` is 0.0.0.0. */
  readonly advertiseHost?: string;
  /**
   * Keys of this rank and who may connect, as the messenger of a transceiver takes them (`(await messengerOptions(config)).curve`); null or
   * left out = plaintext. One key pair for all ranks of the instance is enough.
   */
  readonly curve?: CurveOptions | null;
  /** Connections that were refused, each cause once, with the remedy. Default: nobody is told. */
  readonly onWarning?: (message: string) => void;
  /** Allows addresses that other machines reach, without encryption. Default false. */
  readonly allowPlaintext?: boolean;
  /** How long the ranks may take to come together. Default 60000. */
  readonly joinTimeoutMs?: number;
  /** How long a rank may let the others wait, a forward step included. Default 60000. */
  readonly exchangeTimeoutMs?: number;
  /** Silence after which a rank counts as gone. Default 10000. */
  readonly peerTimeoutMs?: number;
  readonly clock?: Clock;
}

/**
 * Joins the other ranks of this instance over ZeroMQ; resolves when all are here.
 * @throws ConfigError for wrong options or keys, or an address that cannot be bound
 * @throws CompatibilityError when rank 0 does not let this rank in (keys that do not fit, another nonce or size, a rank twice)
 * @throws CapabilityError when `curve` is given and ZeroMQ was built without it
 * @throws TransferTimeoutError when a rank does not come in time, naming it
 */
export async function openRankGroup(options: RankGroupOptions): Promise<RankGroup> {
  const { rank, size, nonce, rank0Endpoint, clock = new SystemClock() } = options;
  const { joinTimeoutMs = 60_000, exchangeTimeoutMs = 60_000, peerTimeoutMs = 10_000 } = options;
  if (!Number.isInteger(size) || size < 1 || size > MAX_RANKS) {
    throw new ConfigError(`rank group size is ${size}; it must be an integer from 1 to ${MAX_RANKS}`);
  }
  if (!Number.isInteger(rank) || rank < 0 || rank >= size) {
    throw new ConfigError(`rank is ${rank}; it must be an integer from 0 to ${size - 1}`);
  }
  for (const [name, value] of Object.entries({ joinTimeoutMs, exchangeTimeoutMs, peerTimeoutMs })) {
    if (!Number.isFinite(value) || value < 1) throw new ConfigError(`${name} is ${value}; it must be at least 1`);
  }
  if (size === 1) return SINGLE_RANK_GROUP;
  const hub = parseEndpoint(rank0Endpoint);
  if (hub === null)
    throw new ConfigError(`rank0Endpoint must be tcp://host:port, got ${JSON.stringify(rank0Endpoint)}`);
  if (typeof nonce !== 'bigint' || nonce <= 0n || nonce >= 1n << 64n) {
    throw new ConfigError('nonce must be a bigint in [1, 2^64), chosen at random for each run of the instance');
  }
  const { messenger, refusal } = await openGroupMessenger({
    clock,
    host: options.host ?? (rank === 0 ? hub.host : '127.0.0.1'),
    port: rank === 0 ? hub.port : 0,
    ...(options.advertiseHost === undefined ? {} : { advertiseHost: options.advertiseHost }),
    allowPlaintext: options.allowPlaintext ?? false,
    curve: options.curve ?? null,
    onWarning: options.onWarning ?? (() => undefined),
    hubEndpoint: rank === 0 ? null : rank0Endpoint,
  });
  const incarnation = randomBytes(8).readBigUInt64LE() || 1n;
  const clocks = { clock, joinTimeoutMs, exchangeTimeoutMs, peerTimeoutMs };
  const { onWarning = () => undefined } = options;
  const shared = { rank, size, nonce, incarnation, messenger, refusal, onWarning, ...clocks };
  const group = rank === 0 ? new HubRankGroup(shared) : new MemberRankGroup({ ...shared, hubEndpoint: rank0Endpoint });
  try {
    await group.joined;
    return group;
  } catch (error) {
    await group.close('it could not join');
    throw error;
  }
}
