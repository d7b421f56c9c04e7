import { InternalError } from '../errors.js';
import { blockShape, sectionsOf, shapeStrides } from './block-shape.js';
import { type BoxOrigin, boxFragments } from './box-fragments.js';
import { headsOf, isWhole } from './compare-views.js';
import { isElected, pairReplicas, pairShards, type ShardPair } from './shard.js';
import type { Fragment } from './transfer-plan.js';
import type { ViewSide } from './view-side.js';

/**
 * What one (layer, view) moves for one pair of blocks: the heads (or section pieces) that both ranks hold, of the tokens that both
 * blocks hold. Empty when they share none, or when another replica is the one that writes.
 *
 * @param part which part of the larger block the smaller one is
 * @param destinationDpRank elects the replica
 */
export function viewFragments(
  source: ViewSide,
  destination: ViewSide,
  part: number,
  destinationDpRank: number,
): Fragment[] {
  switch (source.view.layout) {
    case 'REPLICATED': {
      const replica = pairReplicas(source.tpSize, source.tpRank, destination.tpSize);
      return isElected(replica, destinationDpRank) ? replicatedFragments(source, destination, part) : [];
    }
    case 'SECTIONED':
      return sectionFragments(source, destination, destinationDpRank);
    case 'HND':
    case 'NHD': {
      const shards = pairShards(headsOf(source), headsOf(destination)) ?? unplannable(source);
      if (!isElected(shards.source, destinationDpRank)) return [];
      return headFragments(source, destination, part, shards);
    }
  }
}

function headFragments(source: ViewSide, destination: ViewSide, part: number, shards: ShardPair): Fragment[] {
  const origin = originOf(source, destination);
  const heads = intersect(shards, source.view.headsPerRank, destination.view.headsPerRank);
  if (heads === null) return [];
  if (isWhole(source, destination)) return boxFragments(origin, source.entry.bytes, []);
  const from = blockShape(source.view, source.entry.bytes, source.tokensPerBlock) ?? unplannable(source);
  const to =
    blockShape(destination.view, destination.entry.bytes, destination.tokensPerBlock) ?? unplannable(destination);
  const [src, dst] = [shapeStrides(from, source.view.layout), shapeStrides(to, destination.view.layout)];
  const tokens = Math.min(from.tokens, to.tokens);
  const [srcToken, dstToken] = [from.tokens > tokens ? part * tokens : 0, to.tokens > tokens ? part * tokens : 0];
  return boxFragments(
    {
      ...origin,
      srcOffset: origin.srcOffset + heads.srcBegin * src.head + srcToken * src.token,
      dstOffset: origin.dstOffset + heads.dstBegin * dst.head + dstToken * dst.token,
    },
    from.cellBytes,
    [
      { count: from.planes, srcStride: src.plane, dstStride: dst.plane },
      { count: heads.count, srcStride: src.head, dstStride: dst.head },
      { count: tokens, srcStride: src.token, dstStride: dst.token },
    ],
  );
}

function replicatedFragments(source: ViewSide, destination: ViewSide, part: number): Fragment[] {
  const origin = originOf(source, destination);
  const bytes = Math.min(source.entry.bytes, destination.entry.bytes);
  const [srcPart, dstPart] = [source.entry.bytes > bytes ? part : 0, destination.entry.bytes > bytes ? part : 0];
  return boxFragments(
    { ...origin, srcOffset: origin.srcOffset + srcPart * bytes, dstOffset: origin.dstOffset + dstPart * bytes },
    bytes,
    [],
  );
}

function sectionFragments(source: ViewSide, destination: ViewSide, destinationDpRank: number): Fragment[] {
  const origin = originOf(source, destination);
  const theirs = sectionsOf(destination.view, destination.entry.bytes);
  const fragments: Fragment[] = [];
  let [srcOffset, dstOffset] = [origin.srcOffset, origin.dstOffset];
  for (const [index, mine] of sectionsOf(source.view, source.entry.bytes).entries()) {
    const other = theirs[index] ?? unplannable(destination);
    const shards =
      pairShards(
        { perRank: mine.bytes, unit: mine.unitBytes, tpSize: source.tpSize, tpRank: source.tpRank },
        { perRank: other.bytes, unit: other.unitBytes, tpSize: destination.tpSize, tpRank: destination.tpRank },
      ) ?? unplannable(source);
    const shared = intersect(shards, mine.bytes, other.bytes);
    if (shared !== null && isElected(shards.source, destinationDpRank)) {
      const at = { ...origin, srcOffset: srcOffset + shared.srcBegin, dstOffset: dstOffset + shared.dstBegin };
      fragments.push(...boxFragments(at, shared.count, []));
    }
    srcOffset += mine.bytes;
    dstOffset += other.bytes;
  }
  return fragments;
}

/** The units both shards hold, counted from the first unit of each. */
function intersect(shards: ShardPair, sourcePerRank: number, destinationPerRank: number) {
  const [from, to] = [shards.source.shardIndex * sourcePerRank, shards.destination.shardIndex * destinationPerRank];
  const begin = Math.max(from, to);
  const end = Math.min(from + sourcePerRank, to + destinationPerRank);
  return begin < end ? { srcBegin: begin - from, dstBegin: begin - to, count: end - begin } : null;
}

function originOf(source: ViewSide, destination: ViewSide): BoxOrigin {
  return {
    srcPool: source.entry.pool,
    srcOffset: source.entry.offset,
    dstPool: destination.entry.pool,
    dstOffset: destination.entry.offset,
  };
}

/** `compareViews` was asked before. */
function unplannable(side: ViewSide): never {
  throw new InternalError(`layer ${side.entry.layer}, ${side.view.role}: planned without having been compared`);
}
