import { ArgumentError } from '../errors.js';
import { brief } from './brief.js';
import {
  flatRank,
  MAX_RANKS,
  type RankPlace,
  stageLayers,
  sum,
  type Topology,
  tensorParallel,
  tpPerGroup,
} from './rank-place.js';

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
  checkPlace(me, 'me');
  checkTopology(peer, 'peer');
  if (peer.attentionDp) checkRank(peerDpRank, peer.dpSize, 'peerDpRank');
  if (me.cpSize > 1 && peer.cpSize > 1) {
    throw new ArgumentError('context parallel on both sides is not supported: set cpSize to 1 on one of them');
  }

  const mine = tensorParallel(me);
  const tpTheirs = tpPerGroup(peer);
  const heads = overlapping(mine.rank, mine.size, tpTheirs, 'tensor');
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

/**
 * Whether data of the two ranks overlaps: each is in the other's `peersOf`.
 * @throws ArgumentError as `peersOf`
 */
export function ranksOverlap(a: RankPlace, b: RankPlace): boolean {
  checkPlace(b, 'peer');
  const dpRank = b.attentionDp ? Math.floor(b.tpRank / tpPerGroup(b)) : 0;
  return peersOf(a, b, dpRank).includes(flatRank(b));
}

/**
 * Whether this rank sends the aux to that peer: of the ranks that overlap it, the first of the first stage.
 * @throws ArgumentError as `peersOf`
 */
export function ownsAux(me: RankPlace, peer: RankPlace): boolean {
  if (!ranksOverlap(me, peer)) return false;
  const [mine, theirs] = [tensorParallel(me), tensorParallel(peer)];
  const firstOfGroup = mine.rank % Math.max(1, mine.size / theirs.size) === 0;
  const firstOfBlocks = me.cpRank % Math.max(1, me.cpSize / peer.cpSize) === 0;
  return firstOfGroup && firstOfBlocks && overlappingStages(peer, me)[0] === me.ppRank;
}

function overlapping(rank: number, mine: number, theirs: number, what: string): number[] {
  if (theirs % mine === 0) {
    const share = theirs / mine;
    const shared: number[] = [];
    for (let index = 0; index < share; index++) shared.push(rank * share + index);
    return shared;
  }
  if (mine % theirs === 0) return [Math.floor(rank / (mine / theirs))];
  throw new ArgumentError(`${what} parallel sizes ${mine} and ${theirs}: one must divide the other`);
}

function overlappingStages(me: RankPlace, peer: Topology): number[] {
  const [layersMine, layersTheirs] = [sum(me.layersPerStage), sum(peer.layersPerStage)];
  if (layersMine !== layersTheirs) {
    throw new ArgumentError(`layersPerStage: ${layersMine} layers against ${layersTheirs}: serve the same model`);
  }
  const { begin, end } = stageLayers(me);
  const stages: number[] = [];
  let stageBegin = 0;
  peer.layersPerStage.forEach((layers, stage) => {
    if (Math.max(begin, stageBegin) < Math.min(end, stageBegin + layers)) stages.push(stage);
    stageBegin += layers;
  });
  return stages;
}

/**
 * Checks that a place lies in the instance that its own sizes describe.
 * @param side names the place in the message
 * @throws ArgumentError for sizes that make no instance, or a rank outside them
 */
export function checkPlace(place: RankPlace, side: string): void {
  checkTopology(place, side);
  checkRank(place.tpRank, place.tpSize, `${side}.tpRank`);
  checkRank(place.ppRank, place.ppSize, `${side}.ppRank`);
  checkRank(place.cpRank, place.cpSize, `${side}.cpRank`);
}

function checkTopology(topology: Topology, side: string): void {
  if (typeof topology !== 'object' || topology === null)
    throw new ArgumentError(`${side} must be the place of a rank, got ${brief(topology)}`);
  if (!Array.isArray(topology.layersPerStage))
    throw new ArgumentError(`${side}.layersPerStage must be a list, got ${brief(topology.layersPerStage)}`);
  for (const name of ['tpSize', 'ppSize', 'cpSize', 'dpSize'] as const) {
    const size = topology[name];
    if (!Number.isSafeInteger(size) || size < 1) {
      throw new ArgumentError(`${side}.${name} must be a positive integer, got ${String(size)}`);
    }
  }
  const ranks = topology.tpSize * topology.ppSize * topology.cpSize;
  if (ranks > MAX_RANKS) throw new ArgumentError(`${side} has ${ranks} ranks, at most ${MAX_RANKS} are supported`);
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
