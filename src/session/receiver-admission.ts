import { CompatibilityError, type KvTransceiverError, ProtocolError, SessionRetiredError } from '../errors.js';
import type { RequestData } from '../wire/messages.js';
import { instanceFinding } from './instance-identity.js';
import type { Peer } from './peer-registry.js';
import { checkRequestData } from './request-data-check.js';
import type { TxSession } from './tx-session.js';

/**
 * Why this receiver cannot be served, or null. A request has the receivers that the first one's instance implies: each of those ranks
 * once, and nobody else.
 * @param session undefined while the request is not here yet
 * @param ended why the request ended here; null = completed, undefined = it did not
 */
export function receiverRefusal(
  message: RequestData,
  peer: Peer,
  session: TxSession | undefined,
  ended: KvTransceiverError | null | undefined,
): KvTransceiverError | null {
  const { rid } = message;
  const bad = checkRequestData(message, peer, session?.request ?? null);
  if (bad !== null) return bad;
  if (message.auxSlot >= 0 && peer.link?.mapping.aux === null)
    return new ProtocolError(`request ${rid}: ${peer.name} names an aux slot, but another rank sends aux to it`);
  const failure = { requestId: rid.toString(), drained: true };
  if (ended !== undefined || (session !== undefined && session.outcome !== null)) {
    const why = session?.error ?? ended ?? null;
    return new SessionRetiredError(
      `request ${rid} already ended here${why === null ? '' : `: ${why.message}`}`,
      failure,
    );
  }
  const first = session?.firstReceiver ?? null;
  if (session === undefined || first === null) return null;
  if (session.receiverReady)
    return new SessionRetiredError(
      `request ${rid} already has its ${session.receivers.size} receivers: cancel the earlier attempt first`,
      failure,
    );
  const finding = instanceFinding(first.info, peer.info);
  if (finding !== null)
    return new CompatibilityError(
      `request ${rid}: ${first.name} asked for it, ${peer.name} is of another instance (${finding.field}: ${finding.a} against ${finding.b})`,
      { details: { findings: [finding] } },
    );
  const { rank } = peer.info;
  if (session.expectedReceivers?.has(rank) !== true)
    return new ProtocolError(`request ${rid}: ${peer.name} has no part of what ${first.name} asked for`);
  for (const receiver of session.receivers.values())
    if (receiver.peer.info.rank === rank)
      return new SessionRetiredError(
        `request ${rid} already has ${receiver.peer.name}: cancel the earlier attempt first`,
        failure,
      );
  return null;
}

/**
 * A peer gives up that has not asked yet. The request waits for it if it is one of the receivers that the first one's instance implies; while
 * nobody has asked, if it might be the first. Whoever has asked cancels with the ticket of its question, and nobody cancels for another instance.
 */
export function mayCancelUnasked(peer: Peer, session: TxSession): boolean {
  const { rank } = peer.info;
  if (peer.link?.expectedReceivers.has(rank) !== true) return false;
  const first = session.firstReceiver;
  if (first === null) return true;
  if (instanceFinding(first.info, peer.info) !== null || session.expectedReceivers?.has(rank) !== true) return false;
  return [...session.receivers.values()].every((receiver) => receiver.peer.info.rank !== rank);
}
