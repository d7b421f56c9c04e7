import {
  DeviceLostError,
  ERROR_CODES,
  type ErrorCode,
  KvTransceiverError,
  PeerLostError,
  ProtocolError,
  SessionRetiredError,
  TransferCancelledError,
  TransferTimeoutError,
  TransportError,
} from '../errors.js';

/** What another rank reported, as an error of the same code here. An unknown code is a newer rank's: the text still tells. */
export function remoteError(code: string, message: string): KvTransceiverError {
  switch (code) {
    case 'ERR_KVT_TRANSFER_TIMEOUT':
      return new TransferTimeoutError(message);
    case 'ERR_KVT_TRANSFER_CANCELLED':
      return new TransferCancelledError(message);
    case 'ERR_KVT_PEER_LOST':
      return new PeerLostError(message);
    case 'ERR_KVT_TRANSPORT':
      return new TransportError(message);
    case 'ERR_KVT_DEVICE_LOST':
      return new DeviceLostError(message);
    case 'ERR_KVT_SESSION_RETIRED':
      return new SessionRetiredError(message);
    default:
      return Object.hasOwn(ERROR_CODES, code)
        ? new KvTransceiverError(code as ErrorCode, message)
        : new ProtocolError(message);
  }
}
