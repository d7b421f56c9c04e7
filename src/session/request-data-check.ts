import { type KvTransceiverError, ProtocolError } from '../errors.js';
import type { LlmRequest } from '../executor/request.js';
import { validateRun } from '../mapping/index.js';
import type { RequestData } from '../wire/messages.js';
import type { Peer } from './peer-registry.js';

/**
 * Checks what a receiver asks for against the page table that it published itself, and against the request once it is known (I7).
 * @returns why the request is refused, or null
 */
export function checkRequestData(
  message: RequestData,
  peer: Peer,
  request: LlmRequest | null,
): KvTransceiverError | null {
  const { layerGroups, aux } = peer.info.pageTable;
  const refuse = (text: string): ProtocolError =>
    new ProtocolError(`REQUEST_DATA for request ${message.rid} from ${peer.name}: ${text}`);
  if (request !== null && request.promptTokens.length !== message.promptLen)
    return refuse(`it expects ${message.promptLen} prompt tokens, the request has ${request.promptTokens.length}`);
  if (message.runs.length !== layerGroups.length)
    return refuse(`${message.runs.length} runs for the ${layerGroups.length} layer groups it published`);
  for (const [index, group] of layerGroups.entries()) {
    const run = message.runs[index];
    if (run === undefined) return refuse(`no run for layer group ${index}`);
    try {
      const blockEnd = Math.ceil(message.promptLen / group.tokensPerBlock);
      validateRun(run, group, blockEnd, `the run of layer group ${index}`, peer.info);
    } catch (cause) {
      if (!(cause instanceof ProtocolError)) throw cause;
      return refuse(cause.message);
    }
  }
  if (message.auxSlot >= (aux?.slotCount ?? 0))
    return refuse(`aux slot ${message.auxSlot}, but it published ${aux?.slotCount ?? 0}`);
  return null;
}
