import { brief, briefReason } from './brief.js';
import { comparePageTables } from './compare-page-tables.js';
import type { Finding } from './finding.js';
import type { PageTable } from './page-table.js';
import { ranksOverlap } from './peers-of.js';
import type { RankInfo } from './rank-info.js';
import { flatRank, MAX_RANKS, sum, tensorParallel, tpPerGroup } from './rank-place.js';
import { validatePageTable } from './validate-page-table.js';

export type { Finding } from './finding.js';

/** Findings end up in one control frame. */
const MAX_FINDINGS = 64;
/** Field of the finding about two ranks of instances that fit, but not these two. */
const NOTHING_SHARED = 'rank';

/**
 * Why `a` and `b` cannot exchange KV cache, field by field; empty = compatible. Symmetric up to the two values of each finding.
 * What it does not refuse, `mapPeer` can map. Never throws, whatever a peer sent: an unreadable value is a finding.
 *
 * Tensor and pipeline parallel sizes, layouts, block sizes and pool layouts may differ, as long as one place of one side holds what
 * the other needs; ranks that share nothing are a finding, because a connection between them is a mistake.
 *
 * What page tables do not say cannot be compared: the weights, and how many KV heads the model has where every rank holds a single one
 * (eight ranks may hold eight heads, or eight copies of one).
 */
export function explainCompatibility(a: RankInfo, b: RankInfo): Finding[] {
  return explain(() => {
    const topology = compareTopology(a, b);
    return [...topology, ...compareTables(a, b, topology.length === 0)];
  }).slice(0, MAX_FINDINGS);
}

/**
 * Why no rank of the one instance could exchange cache with any rank of the other; empty = they fit, though these two ranks may share
 * nothing. Never throws.
 */
export function explainTopology(a: RankInfo, b: RankInfo): Finding[] {
  // Two ranks that share nothing are found last, when nothing else was.
  return explain(() => compareTopology(a, b).filter(({ field }) => field !== NOTHING_SHARED)).slice(0, MAX_FINDINGS);
}

/**
 * Why `a` refuses the HELLO of `b`: as `explainTopology`, and where these two ranks share something as `explainCompatibility`; looked at once.
 * Never throws.
 */
export function explainGreeting(a: RankInfo, b: RankInfo): Finding[] {
  return explain(() => {
    const findings = compareTopology(a, b);
    if (findings.length > 0) return findings.filter(({ field }) => field !== NOTHING_SHARED);
    return compareTables(a, b, true);
  }).slice(0, MAX_FINDINGS);
}

/** Runs a comparison of values of which a peer chose one side. */
function explain(compare: () => Finding[]): Finding[] {
  try {
    return compare();
  } catch (error) {
    // A rank info of a shape that the types rule out; the finding carries what there is to say.
    return [
      {
        field: 'rankInfo',
        a: '?',
        b: '?',
        verdict: `refused: cannot be read (${briefReason(error)})`,
        whichSideToChange: 'the side that published it',
      },
    ];
  }
}

/** @param overlap without a common topology it is not known which bytes of the two tables ought to be alike */
function compareTables(a: RankInfo, b: RankInfo, overlap: boolean): Finding[] {
  const findings: Finding[] = [];
  const tableA = checkedTable(a, 'a', findings);
  const tableB = checkedTable(b, 'b', findings);
  if (!overlap || tableA === null || tableB === null) return findings;
  return comparePageTables({ table: tableA, place: a }, { table: tableB, place: b });
}

function checkedTable(info: RankInfo, side: 'a' | 'b', findings: Finding[]): PageTable | null {
  try {
    return validatePageTable(info.pageTable);
  } catch (error) {
    findings.push({
      field: 'pageTable',
      ...onOneSide(side, briefReason(error)),
      verdict: 'refused: the page table is not valid',
    });
    return null;
  }
}

function compareTopology(a: RankInfo, b: RankInfo): Finding[] {
  const findings: Finding[] = [...misplaced(a, 'a'), ...misplaced(b, 'b')];
  if (findings.length > 0) return findings;
  const refuse = (field: string, x: unknown, y: unknown, why: string, whichSideToChange: string): void => {
    findings.push({ field, a: brief(x), b: brief(y), verdict: `refused: ${why}`, whichSideToChange });
  };
  if (a.agent !== b.agent) {
    refuse('agent', a.agent, b.agent, 'the two agents do not speak to each other', 'either: set the same agent');
  }
  const [tpA, tpB] = [tpPerGroup(a), tpPerGroup(b)];
  if (tpA % tpB !== 0 && tpB % tpA !== 0) {
    refuse(
      a.attentionDp || b.attentionDp ? 'tpSize / dpSize' : 'tpSize',
      tpA,
      tpB,
      'neither tensor parallel size divides the other',
      'either: choose sizes where one is a multiple of the other',
    );
  }
  if (a.cpSize > 1 && b.cpSize > 1) {
    const remedy = 'either: set the context parallel size of one side to 1';
    refuse('cpSize', a.cpSize, b.cpSize, 'context parallel caches on both sides', remedy);
  }
  const [layersA, layersB] = [sum(a.layersPerStage), sum(b.layersPerStage)];
  if (layersA !== layersB) {
    const show = (info: RankInfo, layers: number): string =>
      info.ppSize === 1 ? String(layers) : `${layers} (${info.layersPerStage.join(' + ')})`;
    const why = 'the number of layers differs';
    refuse('layersPerStage', show(a, layersA), show(b, layersB), why, 'either: serve the same model on both sides');
  }
  if (findings.length === 0 && !ranksOverlap(a, b)) {
    const where = (info: RankInfo): string => {
      const tp = tensorParallel(info);
      return `rank ${flatRank(info)}: tp ${tp.rank}/${tp.size}, pp ${info.ppRank}/${info.ppSize}, cp ${info.cpRank}/${info.cpSize}`;
    };
    const remedy = 'either: connect each rank to the ranks that peersOf names';
    refuse(NOTHING_SHARED, where(a), where(b), 'these two ranks share no layer, head or block', remedy);
  }
  return findings;
}

/** Sizes and ranks that name no place in their own instance. */
function misplaced(info: RankInfo, side: 'a' | 'b'): Finding[] {
  const findings: Finding[] = [];
  const refuse = (field: string, value: unknown, rule: string): void => {
    findings.push({ field, ...onOneSide(side, brief(value)), verdict: `refused: ${rule}` });
  };
  for (const [name, size, rank] of [
    ['tp', info.tpSize, info.tpRank],
    ['pp', info.ppSize, info.ppRank],
    ['cp', info.cpSize, info.cpRank],
    ['dp', info.dpSize, info.dpRank],
  ] as const) {
    if (!Number.isSafeInteger(size) || size < 1) refuse(`${name}Size`, size, 'must be a positive integer');
    else if (!Number.isSafeInteger(rank) || rank < 0 || rank >= size)
      refuse(`${name}Rank`, rank, `must be below ${size}`);
  }
  const ranks = info.tpSize * info.ppSize * info.cpSize;
  if (findings.length === 0 && ranks > MAX_RANKS)
    refuse('tpSize x ppSize x cpSize', ranks, `at most ${MAX_RANKS} ranks`);
  if (typeof info.attentionDp !== 'boolean') refuse('attentionDp', info.attentionDp, 'must be true or false');
  const stages: unknown = info.layersPerStage;
  // The length first: a list that no instance can have is not walked.
  if (Array.isArray(stages) && findings.length === 0 && stages.length !== info.ppSize) {
    refuse('layersPerStage', stages, `must have an entry for each of the ${info.ppSize} pipeline stages`);
  } else if (!isLayerList(stages)) {
    refuse('layersPerStage', stages, 'must be a list of non-negative integers');
  }
  if (findings.length > 0 || !info.attentionDp) return findings;
  if (info.tpSize % info.dpSize !== 0) {
    refuse('dpSize', info.dpSize, `must divide the tensor parallel size ${info.tpSize} under attention DP`);
    return findings;
  }
  const dpRank = Math.floor(info.tpRank / tpPerGroup(info));
  if (info.dpRank !== dpRank) {
    refuse('dpRank', info.dpRank, `tensor parallel rank ${info.tpRank} is in DP group ${dpRank} under attention DP`);
  }
  return findings;
}

function isLayerList(stages: unknown): boolean {
  if (!Array.isArray(stages) || stages.length > MAX_RANKS) return false;
  // By index: an iteration would leave out the gaps of a list.
  for (let stage = 0; stage < stages.length; stage++) {
    const layers: unknown = stages[stage];
    if (typeof layers !== 'number' || !Number.isSafeInteger(layers) || layers < 0) return false;
  }
  return true;
}

function onOneSide(side: 'a' | 'b', shown: string): Pick<Finding, 'a' | 'b' | 'whichSideToChange'> {
  const [a, b] = side === 'a' ? [shown, 'not compared'] : ['not compared', shown];
  return { a, b, whichSideToChange: side };
}
