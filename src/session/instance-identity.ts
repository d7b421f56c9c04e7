import { createHash } from 'node:crypto';
import type { Finding, RankInfo } from '../mapping/index.js';

/** A text this short is its own digest: to hash it costs more than to compare it each time. */
const MAX_PLAIN_CHARACTERS = 1024;
/** Same digest = same instance; computed once per rank info, because every question compares. */
const digests = new WeakMap<RankInfo, string>();

/**
 * Why two ranks are not of one instance, or null. Ranks of an instance publish the same name, the same split of the model, the same list
 * of endpoints and, where they hold the same kind of cache, the same block size.
 *
 * This is what makes a list of endpoints harmless: whoever publishes one can make this rank greet the addresses on it, but a question
 * (which names our pages) goes only to a rank that answers with the same list and stands in it where it was looked for. A list that names
 * a rank of somebody else therefore ends the request; it cannot send that rank anything but a HELLO.
 */
export function instanceFinding(a: RankInfo, b: RankInfo): Finding | null {
  if (a === b) return null;
  if (digestOf(a) !== digestOf(b)) {
    const [shownA, shownB] = [identityFields(a), identityFields(b)];
    const field = Object.keys(shownA).find((name) => shownA[name] !== shownB[name]) ?? 'rankEndpoints';
    return {
      field,
      a: brief(shownA[field] ?? ''),
      b: brief(shownB[field] ?? ''),
      verdict: 'refused: ranks of one request are not of one instance',
      whichSideToChange: `${a.instanceName}: start all its ranks with the same ${field}`,
    };
  }
  return blockSizeFinding(a, b);
}

function blockSizeFinding(a: RankInfo, b: RankInfo): Finding | null {
  for (const mine of a.pageTable.layerGroups) {
    const theirs = b.pageTable.layerGroups.find(({ kind }) => kind === mine.kind && kind !== 'state');
    if (theirs === undefined || theirs.tokensPerBlock === mine.tokensPerBlock) continue;
    return {
      field: 'tokensPerBlock',
      a: String(mine.tokensPerBlock),
      b: String(theirs.tokensPerBlock),
      verdict: 'refused: ranks of one instance cut prompts into different blocks',
      whichSideToChange: `${a.instanceName}: start all its ranks with the same tokensPerBlock`,
    };
  }
  return null;
}

function digestOf(info: RankInfo): string {
  let digest = digests.get(info);
  if (digest === undefined) {
    const text = JSON.stringify(identityFields(info));
    digest = text.length <= MAX_PLAIN_CHARACTERS ? text : createHash('sha256').update(text).digest('base64');
    digests.set(info, digest);
  }
  return digest;
}

function identityFields(info: RankInfo): Record<string, string> {
  return {
    instanceName: info.instanceName,
    agent: info.agent,
    tpSize: String(info.tpSize),
    ppSize: String(info.ppSize),
    cpSize: String(info.cpSize),
    dpSize: String(info.dpSize),
    attentionDp: String(info.attentionDp),
    layersPerStage: info.layersPerStage.join(' + '),
    rankEndpoints: info.rankEndpoints.join(' '),
  };
}

/** It ends up in an error message. */
function brief(text: string): string {
  return text.length <= 120 ? text : `${text.slice(0, 117)}...`;
}
