/** Ranks of one instance at most. Lists of ranks are made from what a peer says of itself. */
export const MAX_RANKS = 64 * 1024;

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

/** A place whose DP rank is known, as a `RankInfo` has it: which replica writes depends on it. */
export interface RankPlaceInDp extends RankPlace {
  readonly dpRank: number;
}

/** The only rank of its instance; its one stage holds whatever layers its page table names. */
export const SINGLE_RANK: Omit<RankPlaceInDp, 'layersPerStage'> = {
  tpSize: 1,
  tpRank: 0,
  ppSize: 1,
  ppRank: 0,
  cpSize: 1,
  cpRank: 0,
  dpSize: 1,
  dpRank: 0,
  attentionDp: false,
};

/** The same of something that has one layer, such as the aux buffer. */
export const LONE_RANK: RankPlaceInDp = { ...SINGLE_RANK, layersPerStage: [1] };

/** Tensor parallel size and rank among the ranks that share a request's heads. */
export function tensorParallel(place: Pick<RankPlace, 'tpSize' | 'tpRank' | 'dpSize' | 'attentionDp'>): {
  readonly size: number;
  readonly rank: number;
} {
  const size = tpPerGroup(place);
  return { size, rank: place.tpRank % size };
}

/** Ranks that share a request's heads. */
export function tpPerGroup(topology: Pick<Topology, 'tpSize' | 'dpSize' | 'attentionDp'>): number {
  return topology.attentionDp ? topology.tpSize / topology.dpSize : topology.tpSize;
}

/** `pp * (TP * CP) + tp * CP + cp`: context parallel is the minor rank. */
export function flatRank(place: RankPlace): number {
  return (place.ppRank * place.tpSize + place.tpRank) * place.cpSize + place.cpRank;
}

/** Global layer ids `[begin, end)` of the rank's stage. */
export function stageLayers(place: RankPlace): { readonly begin: number; readonly end: number } {
  const begin = sum(place.layersPerStage.slice(0, place.ppRank));
  return { begin, end: begin + (place.layersPerStage[place.ppRank] ?? 0) };
}

/** Of the layers of some stages. 0 for none. */
export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
