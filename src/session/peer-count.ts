import { type Finding, peersOf, type RankInfo } from '../mapping/index.js';

/**
 * Sessions serve one receiver and wait for one writer per request. Ranks that split a request over more than one peer are refused here,
 * before a transfer could bring a part of it.
 * @returns null when one rank on each side holds the whole of what the two share
 */
export function severalPeersFinding(self: RankInfo, peer: RankInfo): Finding | null {
  const receivers = peersOf(self, peer, peer.dpRank).length;
  const writers = peersOf(peer, self, self.dpRank).length;
  if (receivers === 1 && writers === 1) return null;
  return {
    field: 'peers',
    a: shape(self),
    b: shape(peer),
    verdict: `a request would have ${writers} writers and ${receivers} receivers; sessions serve one of each`,
    whichSideToChange: 'give both sides the same tpSize, ppSize and cpSize',
  };
}

function shape({ tpSize, ppSize, cpSize }: RankInfo): string {
  return `TP ${tpSize}, PP ${ppSize}, CP ${cpSize}`;
}
