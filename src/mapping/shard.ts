import { ArgumentError } from '../errors.js';

/** Which part of a whole a rank holds, and which of the equal copies of that part it is. */
export interface Shard {
  readonly numShards: number;
  readonly shardIndex: number;
  readonly numReplicas: number;
  readonly replicaIndex: number;
}

/** What one rank holds of something that tensor parallelism splits. */
export interface ShardedAmount {
  /** Units (heads, bytes) on one rank. */
  readonly perRank: number;
  /** What a rank holds at least: a rank that holds one unit may be one of several that hold the same. */
  readonly unit: number;
  /** Ranks that share the whole, and which of them this is. */
  readonly tpSize: number;
  readonly tpRank: number;
}

/** Both sides' shards of one whole, in the same units. */
export interface ShardPair {
  readonly total: number;
  readonly source: Shard;
  readonly destination: Shard;
}

/**
 * How the shards of two instances meet. Where one instance holds more in all than the other, it holds copies: tensor parallel beyond
 * the number of KV heads duplicates them. Copies that both have alike need no name, their ranks pair one to one.
 *
 * @returns null when no split of one whole gives both amounts
 * @example two KV heads, TP4 (one head a rank) -> TP2 (one head a rank): the source has two replicas of two shards
 */
export function pairShards(source: ShardedAmount, destination: ShardedAmount): ShardPair | null {
  const total = Math.min(source.perRank * source.tpSize, destination.perRank * destination.tpSize);
  const [from, to] = [shardOf(source, total), shardOf(destination, total)];
  return from === null || to === null ? null : { total, source: from, destination: to };
}

function shardOf({ perRank, unit, tpSize, tpRank }: ShardedAmount, total: number): Shard | null {
  const numReplicas = (perRank * tpSize) / total;
  if (!Number.isSafeInteger(numReplicas) || tpSize % numReplicas !== 0) return null;
  if (numReplicas > 1 && perRank !== unit) return null;
  return {
    numShards: tpSize / numReplicas,
    shardIndex: Math.floor(tpRank / numReplicas),
    numReplicas,
    replicaIndex: tpRank % numReplicas,
  };
}

/** Of what every rank holds whole: each destination rank has this many sources to choose from. */
export function pairReplicas(sourceSize: number, sourceRank: number, destinationSize: number): Shard {
  const numReplicas = Math.max(1, sourceSize / destinationSize);
  return { numShards: 1, shardIndex: 0, numReplicas, replicaIndex: sourceRank % numReplicas };
}

/** Exactly one of the replicas writes to a destination; which one is spread over the destination's DP ranks. */
export function isElected(shard: Shard, destinationDpRank: number): boolean {
  return destinationDpRank % shard.numReplicas === shard.replicaIndex;
}

/**
 * The KV heads of one rank of a tensor parallel group. More ranks than heads share a head.
 * @throws ArgumentError when neither number divides the other, or the rank is outside
 * @example kvHeadShard(2, 4, 3) // { headsPerRank: 1, firstHead: 1, numShards: 2, shardIndex: 1, numReplicas: 2, replicaIndex: 1 }
 */
export function kvHeadShard(
  kvHeads: number,
  tpSize: number,
  tpRank: number,
): Shard & { readonly headsPerRank: number; readonly firstHead: number } {
  for (const [field, value] of [
    ['kvHeads', kvHeads],
    ['tpSize', tpSize],
  ] as const) {
    if (!Number.isSafeInteger(value) || value < 1) {
      throw new ArgumentError(`${field} must be a positive integer, got ${String(value)}`, { details: { field } });
    }
  }
  if (!Number.isSafeInteger(tpRank) || tpRank < 0 || tpRank >= tpSize) {
    throw new ArgumentError(`tpRank must be an integer below ${tpSize}, got ${String(tpRank)}`, {
      details: { field: 'tpRank' },
    });
  }
  const numReplicas = Math.max(1, tpSize / kvHeads);
  const headsPerRank = Math.max(1, kvHeads / tpSize);
  if (!Number.isInteger(numReplicas) || !Number.isInteger(headsPerRank)) {
    throw new ArgumentError(`kvHeads ${kvHeads} and tpSize ${tpSize}: one must divide the other`, {
      details: { field: 'kvHeads' },
    });
  }
  const shardIndex = Math.floor(tpRank / numReplicas);
  return {
    headsPerRank,
    firstHead: shardIndex * headsPerRank,
    numShards: tpSize / numReplicas,
    shardIndex,
    numReplicas,
    replicaIndex: tpRank % numReplicas,
  };
}
