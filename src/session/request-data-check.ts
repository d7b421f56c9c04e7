import { type KvTransceiverError, ProtocolError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import { type BlockRun, HOLE } from '../geometry/block-run.js';
import { type PageTableGroup, validateRun } from '../mapping/index.js';
import type { RequestData } from '../wire/messages.js';
import type { ContextParallelPlace } from './group-run.js';
import { ownedRanges } from './owned-ranges.js';
import type { Peer } from './peer-registry.js';

/**
 * Checks what a receiver asks for against the page table that it published itself, and against the request once it is known (I7). Its prompt
 * length, its cached prefix and its table say which blocks it must name, so that all but the prompt length is known to be right before the
 * request is here.
 * @returns why the request is refused, or null
 */
export function checkRequestData(
  message: RequestData,
  peer: Peer,
  request: LlmRequest | null,
): KvTransceiverError | null {
  const { layerGroups, aux } = peer.info.pageTable;
  const { promptLen, cachedTokens } = message;
  const refuse = (text: string): ProtocolError =>
    new ProtocolError(`REQUEST_DATA for request ${message.rid} from ${peer.name}: ${text}`);
  if (request !== null && request.promptTokens.length !== promptLen)
    return refuse(`it expects ${promptLen} prompt tokens, the request has ${request.promptTokens.length}`);
  if (promptLen === 0) return refuse('a prompt has at least one token');
  if (cachedTokens > promptLen) return refuse(`${cachedTokens} cached tokens of a prompt of ${promptLen}`);
  if (message.runs.length !== layerGroups.length)
    return refuse(`${message.runs.length} runs for the ${layerGroups.length} layer groups it published`);
  for (const [index, group] of layerGroups.entries()) {
    const run = message.runs[index];
    if (run === undefined) return refuse(`no run for layer group ${index}`);
    try {
      const field = `the run of layer group ${index}`;
      validateRun(run, group, Math.ceil(promptLen / group.tokensPerBlock), field, peer.info);
      requireWhole(run, group, message, field, peer.info);
    } catch (cause) {
      if (!(cause instanceof ProtocolError)) throw cause;
      return refuse(cause.message);
    }
  }
  if (message.auxSlot >= (aux?.slotCount ?? 0))
    return refuse(`aux slot ${message.auxSlot}, but it published ${aux?.slotCount ?? 0}`);
  return null;
}

/**
 * A receiver names a slot for each block that it owns and does not have, and for no other; between sink blocks and window lies a hole. A run
 * with less would be complete without what its receiver lacks.
 * @throws ProtocolError
 */
function requireWhole(
  { begin, slots }: BlockRun,
  group: PageTableGroup,
  { promptLen, cachedTokens }: RequestData,
  field: string,
  place: ContextParallelPlace,
): void {
  const { kind, windowSize, sinkTokens = 0, tokensPerBlock } = group;
  const wanted = {
    beginBlock: Math.floor(cachedTokens / tokensPerBlock),
    endBlock: Math.ceil(promptLen / tokensPerBlock),
    isLast: true,
  };
  // Groups of a rank are never aux: that one is published apart.
  const shape = { kind: kind === 'aux' ? 'attention' : kind, windowSize, sinkTokens, tokensPerBlock } as const;
  const { front, back } = ownedRanges(shape, wanted, promptLen, place);
  const first = front ?? back;
  const last = back ?? front;
  const count = first === null || last === null ? 0 : last.end - first.begin;
  const toOrdinal = (own: number): number => (kind === 'state' ? own : place.cpRank + own * place.cpSize);
  const refuse = (rule: string): never => {
    throw new ProtocolError(`${field} ${rule}`, { details: { field } });
  };
  const whole = (): string => `a prompt of ${promptLen} tokens with ${cachedTokens} cached needs ${count}`;
  if (slots.length !== count) refuse(`has ${slots.length} blocks, ${whole()}`);
  if (first === null || last === null) return;
  if (begin !== toOrdinal(first.begin))
    refuse(`begins at block ${begin}, ${whole()} from ${toOrdinal(first.begin)} on`);
  const hole =
    front !== null && back !== null ? { begin: front.end - front.begin, end: back.begin - front.begin } : null;
  for (let i = 0; i < slots.length; i++) {
    const isHole = hole !== null && i >= hole.begin && i < hole.end;
    if ((slots[i] === HOLE) !== isHole)
      refuse(
        `names ${isHole ? 'a' : 'no'} slot for block ${toOrdinal(first.begin + i)}, which it ${isHole ? 'does not need' : 'needs'}`,
      );
  }
}
