import { TransferTimeoutError } from '../errors.js';
import type { ExpiredClock } from './request-clocks.js';
import type { TxSession } from './tx-session.js';

/** What a request ends with whose clock ran out at the sending side. */
export function sendTimeout(session: TxSession, expired: ExpiredClock): TransferTimeoutError {
  const { rid, receivers } = session;
  const peer = [...receivers.values()][0]?.peer.name ?? 'any generation server';
  const text =
    expired.clock === 'queue'
      ? `request ${rid}: ${missingReceivers(session)} asked within ${expired.limitMs} ms (transferQueueTimeoutMs)`
      : `request ${rid} to ${peer}: the ${expired.clock} clock of ${expired.limitMs} ms ran out`;
  return new TransferTimeoutError(text, { requestId: rid.toString(), peer, details: { clock: expired.clock } });
}

function missingReceivers({ receivers, expectedReceivers }: TxSession): string {
  if (expectedReceivers === null) return 'no receiver';
  return `only ${receivers.size} of ${expectedReceivers.size} receivers`;
}
