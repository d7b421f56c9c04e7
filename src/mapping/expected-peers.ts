import { peersOf } from './peers-of.js';
import type { RankPlace, Topology } from './rank-place.js';

/**
 * The generation ranks that a context rank serves for one request. It writes to, or only reports to, each of them.
 * @param generationDpRank DP group of the generation server that holds the request; only looked at under attention DP
 * @returns flat ranks, ascending
 * @throws ArgumentError as `peersOf`
 */
export function expectedReceivers(context: RankPlace, generation: Topology, generationDpRank: number): number[] {
  return peersOf(context, generation, generationDpRank);
}

/**
 * The context ranks of one DP group whose final report a generation rank waits for, also those that move no byte.
 * @param contextDpRank DP group of the context server that computed the request; only looked at under attention DP
 * @returns flat ranks, ascending
 * @throws ArgumentError as `peersOf`
 */
export function expectedWriters(generation: RankPlace, context: Topology, contextDpRank: number): number[] {
  return peersOf(generation, context, contextDpRank);
}

/**
 * Whom to ask while the DP group of the request is not known (attention DP, generation first): every group. One of them is
 * assigned the request and writes; reports are expected from that one only.
 * @returns `expectedWriters` of each DP group
 * @throws ArgumentError as `peersOf`
 */
export function writersOfEveryGroup(generation: RankPlace, context: Topology): number[][] {
  const groups = context.attentionDp ? context.dpSize : 1;
  return Array.from({ length: groups }, (_, dpRank) => expectedWriters(generation, context, dpRank));
}

/**
 * Of the expected writers, the one that also sends aux: the first rank of the first stage that overlaps.
 * @returns a flat rank; null when no rank overlaps (a stage without layers)
 * @throws ArgumentError as `peersOf`
 */
export function auxWriter(generation: RankPlace, context: Topology, contextDpRank: number): number | null {
  return auxWriterOf(expectedWriters(generation, context, contextDpRank));
}

/** `auxWriter` of expected writers that are known. */
export function auxWriterOf(writers: readonly number[]): number | null {
  // Flat ranks ascend by stage, then by tensor rank, then by context rank.
  return writers[0] ?? null;
}
