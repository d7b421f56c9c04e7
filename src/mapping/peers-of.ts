import { ArgumentError } from '../errors.js';

/** How one instance splits a model over its ranks. A `RankInfo` is one. */
export interface Topology {
  readonly tpSize: number;
  readonly ppSize: number;
  readonly cpSize: number;
  readonly dpSize: number;
  /** Each DP group holds whole requests; a request's heads are split over `tpSize / dpSize` ranks. */
  readonly attentionDp: boolean;
  /** Layers of each pipeline stage, in order. */
  readonly layersPerStage: readonly number[];
}

/** One rank's place in its instance. */
export interface RankPlace extends Topology {
  readonly tpRank: number;
  readonly ppRank: number;
  readonly cpRank: number;
}

/**
 * The peer ranks whose data overlaps mine, ascending: every stage that shares a layer, in each the ranks that share a head (and a
 * block, where context parallel). Counting reports goes by this list, never by bytes.
 * Flat rank = `pp * (TP * CP) + tp * CP + cp`.
 *
 * @param peerDpRank DP group of the peer that holds the request; only looked at under attention DP
 * @throws ArgumentError for sizes where neither divides the other, both sides context parallel, layer counts that differ, or a
 *   rank outside its size
 * @example 8 KV heads, TP2 -> TP4: `peersOf(context rank 0, generation, 0)` is [0, 1]
 */
export function peersOf(me: RankPlace, peer: Topology, peerDpRank: number): number[] {
  checkTopology(me, 'me');
  checkTopology(peer, 'peer');
  checkRank(me.tpRank, me.tpSize, 'me.tpRank');
  checkRank(me.ppRank, me.ppSize, 'me.ppRank');
  checkRank(me.cpRank, me.cpSize, 'me.cpRank');
  if (peer.attentionDp) checkRank(peerDpRank, peer.dpSize, 'peerDpRank');
  if (me.cpSize > 1 && peer.cpSize > 1) {
    throw new ArgumentError('context parallel on both sides is not supported: set cpSize to 1 on one of them');
  }

  const [tpMine, tpTheirs] = [tpPerGroup(me), tpPerGroup(peer)];
  const heads = overlapping(me.tpRank % tpMine, tpMine, tpTheirs, 'tensor');
  const firstTp = peer.attentionDp ? peerDpRank * tpTheirs : 0;
  const blocks = overlapping(me.cpRank, me.cpSize, peer.cpSize, 'context');
  const ranks: number[] = [];
  for (const stage of overlappingStages(me, peer)) {
    for (const tp of heads) {
      for (const cp of blocks) ranks.push((stage * peer.tpSize + firstTp + tp) * peer.cpSize + cp);
    }
  }
  return ranks;
}

function overlapping(rank: number, mine: number, theirs: number, what: string): number[] {
  if (theirs % mine === 0) {
    const share = theirs / mine;
    return Array.from({ length: share }, (_, index) => rank * share + index);
  }
  if (mine % theirs === 0) return [Math.floor(rank / (mine / theirs))];
  throw new ArgumentError(`${what} parallel sizes ${mine} and ${theirs}: one must divide the other`);
}

function overlappingStages(me: RankPlace, peer: Topology): number[] {
  const [layersMine, layersTheirs] = [sum(me.layersPerStage), sum(peer.layersPerStage)];
  if (layersMine !== layersTheirs) {
    throw new ArgumentError(`layersPerStage: ${layersMine} layers against ${layersTheirs}: serve the same model`);
  }
  const begin = sum(me.layersPerStage.slice(0, me.ppRank));
  const end = begin + (me.layersPerStage[me.ppRank] as number);
  const stages: number[] = [];
  let stageBegin = 0;
  peer.layersPerStage.forEach((layers, stage) => {
    if (Math.max(begin, stageBegin) < Math.min(end, stageBegin + layers)) stages.push(stage);
    stageBegin += layers;
  });
  return stages;
}

function tpPerGroup(topology: Topology): number {
  return topology.attentionDp ? topology.tpSize / topology.dpSize : topology.tpSize;
}

function checkTopology(topology: Topology, side: string): void {
  for (const name of ['tpSize', 'ppSize', 'cpSize', 'dpSize'] as const) {
    const size = topology[name];
    if (!Number.isSafeInteger(size) || size < 1) {
      throw new ArgumentError(`${side}.${name} must be a positive integer, got ${String(size)}`);
    }
  }
  if (topology.attentionDp && topology.tpSize % topology.dpSize !== 0) {
    throw new ArgumentError(
      `${side}.dpSize ${topology.dpSize} must divide tpSize ${topology.tpSize} under attention DP`,
    );
  }
  if (topology.layersPerStage.length !== topology.ppSize) {
    throw new ArgumentError(
      `${side}.layersPerStage has ${topology.layersPerStage.length} entries for ${topology.ppSize} pipeline stages`,
    );
  }
  for (const layers of topology.layersPerStage) {
    if (!Number.isSafeInteger(layers) || layers < 0) {
      throw new ArgumentError(`${side}.layersPerStage must hold non-negative integers, got ${String(layers)}`);
    }
  }
}

function checkRank(rank: number, size: number, field: string): void {
  if (!Number.isSafeInteger(rank) || rank < 0 || rank >= size) {
    throw new ArgumentError(`${field} must be an integer below ${size}, got ${String(rank)}`);
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
