import { brief } from './brief.js';
import { comparePageTables } from './compare-page-tables.js';
import type { RankInfo } from './rank-info.js';
import { validatePageTable } from './validate-page-table.js';

/** One reason why two ranks cannot exchange KV cache. */
export interface Finding {
  readonly field: string;
  readonly a: string;
  readonly b: string;
  readonly verdict: string;
  readonly whichSideToChange: string;
}

/** Findings end up in one control frame. */
const MAX_FINDINGS = 64;

/**
 * Why `a` and `b` cannot exchange KV cache, field by field; empty = compatible. Symmetric up to the two values of each finding.
 * What it does not refuse, `planFragments` can plan. Never throws, whatever a peer sent: an unreadable value is a finding.
 *
 * Ranks pair one to one: tensor, pipeline and context parallel sizes and ranks must be equal, context parallel size 1. Under
 * attention DP that holds inside a DP group; the DP ranks themselves may differ, each holds every head.
 */
export function explainCompatibility(a: RankInfo, b: RankInfo): Finding[] {
  const findings: Finding[] = [];
  try {
    findings.push(...compareTopology(a, b));
    const tableA = checkedTable(a, 'a', findings);
    const tableB = checkedTable(b, 'b', findings);
    if (tableA !== null && tableB !== null) findings.push(...comparePageTables(tableA, tableB));
  } catch (error) {
    // A rank info of a shape that the types rule out; the finding carries what there is to say.
    findings.push({
      field: 'rankInfo',
      a: '?',
      b: '?',
      verdict: `refused: cannot be read (${brief(error instanceof Error ? error.message : 'unknown error')})`,
      whichSideToChange: 'the side that published it',
    });
  }
  return findings.slice(0, MAX_FINDINGS);
}

function checkedTable(info: RankInfo, side: 'a' | 'b', findings: Finding[]) {
  try {
    return validatePageTable(info.pageTable);
  } catch (error) {
    const reason = brief(error instanceof Error ? error.message : 'unreadable');
    findings.push({
      field: 'pageTable',
      a: side === 'a' ? reason : 'not compared',
      b: side === 'b' ? reason : 'not compared',
      verdict: 'refused: the page table is not valid',
      whichSideToChange: side,
    });
    return null;
  }
}

function compareTopology(a: RankInfo, b: RankInfo): Finding[] {
  const findings: Finding[] = [...misplaced(a, 'a'), ...misplaced(b, 'b')];
  if (findings.length > 0) return findings;
  const differ = (field: string, x: unknown, y: unknown, verdict: string, whichSideToChange: string): void => {
    if (String(x) === String(y)) return;
    findings.push({ field, a: brief(x), b: brief(y), verdict, whichSideToChange });
  };
  const [tpA, tpB] = [tensorParallel(a), tensorParallel(b)];

  differ('agent', a.agent, b.agent, 'refused: the two agents do not speak to each other', 'either: set the same agent');
  differ(
    a.attentionDp || b.attentionDp ? 'tpSize / dpSize' : 'tpSize',
    tpA.size,
    tpB.size,
    'refused: a head split between tensor parallel sizes is not supported',
    'either: start both servers with the same tensor parallel size',
  );
  differ(
    'ppSize',
    a.ppSize,
    b.ppSize,
    'refused: a layer split between pipeline parallel sizes is not supported',
    'either: start both servers with the same pipeline parallel size',
  );
  for (const [side, info] of [
    ['a', a],
    ['b', b],
  ] as const) {
    if (info.cpSize === 1) continue;
    findings.push({
      field: 'cpSize',
      a: String(a.cpSize),
      b: String(b.cpSize),
      verdict: 'refused: context parallel caches are not supported',
      whichSideToChange: `${side}: set the context parallel size to 1`,
    });
  }
  if (findings.length > 0) return findings;

  differ(
    'layersPerStage',
    a.layersPerStage,
    b.layersPerStage,
    'refused: stages hold other layers',
    'either: split alike',
  );
  const pairing = 'refused: ranks pair one to one, this one holds other data';
  differ('tpRank', tpA.rank, tpB.rank, pairing, 'either: connect to the peer of the same tensor parallel rank');
  differ('ppRank', a.ppRank, b.ppRank, pairing, 'either: connect to the peer of the same pipeline stage');
  return findings;
}

/** Sizes and ranks that name no place in their own instance. */
function misplaced(info: RankInfo, side: 'a' | 'b'): Finding[] {
  const findings: Finding[] = [];
  const refuse = (field: string, value: unknown, rule: string): void => {
    const [a, b] = side === 'a' ? [brief(value), 'not compared'] : ['not compared', brief(value)];
    findings.push({ field, a, b, verdict: `refused: ${rule}`, whichSideToChange: side });
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
  if (findings.length === 0 && info.attentionDp && info.tpSize % info.dpSize !== 0) {
    refuse('dpSize', info.dpSize, `must divide the tensor parallel size ${info.tpSize} under attention DP`);
  }
  return findings;
}

/** Tensor parallel size and rank among the ranks that share a request's heads. */
function tensorParallel(info: RankInfo): { readonly size: number; readonly rank: number } {
  if (!info.attentionDp) return { size: info.tpSize, rank: info.tpRank };
  const size = info.tpSize / info.dpSize;
  return { size, rank: info.tpRank % size };
}
