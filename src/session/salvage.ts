import type { LayerGroup } from '../cache/kv-cache-manager.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import type { RxSession } from './rx-session.js';
import type { RxWriter } from './rx-writer.js';

/**
 * How many tokens of the prompt, from its start, are complete in the pages of a receive that did not complete: the engine needs to
 * compute only the rest. Whole blocks; 0 when it is no more than the receiver had before.
 *
 * Blocks count when every expected writer said of each that it arrived, in slices without a gap or an overlap whose bytes are those of the
 * plan, and no more of them than its report admits. That is the writers' word, as a completion is; a writer that lies about its slices could
 * as well report DONE.
 *
 * A layer group of a window has tokens `[0, k)` when it has the blocks that token k looks at; it asked only for those that the end of the
 * prompt looks at. Recurrent state comes with the last slice, so that a part of it is worth nothing.
 *
 * @param plannedBytes what the plan has a writer move in its blocks `[0, endBlock)`
 */
export function salvageableTokens(
  session: RxSession,
  layerGroups: readonly LayerGroup[],
  plannedBytes: (writer: RxWriter, endBlock: number) => number,
): number {
  const { expected, request } = session;
  const promptLen = request.promptTokens.length;
  if (expected.length === 0 || session.outcome === 'completed') return 0;
  if (!expected.every((writer) => isPlausible(writer, plannedBytes))) return 0;
  const delivered = Math.min(promptLen, ...expected.map(verifiedTokens));
  if (!layerGroups.every((group) => holdsUpTo(group, delivered, promptLen, request.prepopulatedLen))) return 0;
  const blockTokens = Math.max(...layerGroups.map(({ tokensPerBlock }) => tokensPerBlock));
  const whole = Math.floor(delivered / blockTokens) * blockTokens;
  return whole > request.prepopulatedLen ? whole : 0;
}

function isPlausible(writer: RxWriter, plannedBytes: (writer: RxWriter, endBlock: number) => number): boolean {
  const { verifiedEndBlock, verifiedBytes, outcome, reportedBytes } = writer;
  if (verifiedEndBlock === 0 || writer.blockTokens === null) return false;
  if (verifiedBytes !== plannedBytes(writer, verifiedEndBlock)) return false;
  return outcome === null || reportedBytes >= verifiedBytes;
}

/** The writer counts in blocks of its own. */
function verifiedTokens(writer: RxWriter): number {
  return writer.verifiedEndBlock * (writer.blockTokens ?? 0);
}

function holdsUpTo(group: LayerGroup, tokens: number, promptLen: number, prepopulatedLen: number): boolean {
  if (group.kind === 'state') return false;
  const { windowSize, tokensPerBlock } = group;
  const asked = staleBlockEnd(promptLen, windowSize, tokensPerBlock);
  const cached = Math.floor(prepopulatedLen / tokensPerBlock);
  return asked <= cached || asked <= staleBlockEnd(tokens, windowSize, tokensPerBlock);
}
