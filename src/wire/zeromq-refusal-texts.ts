import type { Event } from 'zeromq';
import type { HandshakeRefusal } from './messenger-counters.js';
import type { CurveIdentity } from './zeromq-curve.js';

/** A handshake that failed, and what an operator should do about it. */
export interface RefusedHandshake {
  readonly cause: HandshakeRefusal;
  readonly message: string;
}

/** What an event of the bound socket means. Null: nothing was refused, or the authenticator has told it already, with the key. */
export function refusedClient(event: Event, curve: CurveIdentity | null): RefusedHandshake | null {
  if (event.type === 'accept:error') {
    return {
      cause: 'client-no-descriptor',
      message: `a connection could not be accepted (${event.error.message}): raise the limit of open files (ulimit -n), and find what connects to this port`,
    };
  }
  if (event.type !== 'handshake:error:protocol') return null;
  switch (event.error.code) {
    case 'ERR_ZMTP_MECHANISM_MISMATCH':
      return {
        cause: 'client-mechanism',
        message:
          curve === null
            ? 'refused a client that encrypts: this rank has no security.curve; set it here, or remove it there'
            : 'refused a client that does not encrypt: set security.curve there too',
      };
    case 'ERR_ZMTP_CRYPTOGRAPHIC':
      return {
        cause: 'client-expects-other-key',
        message:
          'refused a client that expects another server key at this address: ' +
          `there, set security.curve.peers for this rank to ${curve?.publicKey ?? 'its public key'}`,
      };
    default:
      return {
        cause: 'client-protocol',
        message: `refused something that does not speak ZeroMQ as peers do (${event.error.code}): find what connects to this port`,
      };
  }
}

export function clientNotAllowed(publicKey: string, address: string): RefusedHandshake {
  return {
    cause: 'client-not-allowed',
    message:
      `refused a client at ${address} with the public key ${publicKey}: ` +
      'add it to security.allowedClients if it is one of yours',
  };
}

/** What a failed handshake with a peer means. Null: nothing yet; ZeroMQ tries again. */
export function refusedByPeer(event: Event, peer: string, curve: CurveIdentity | null): RefusedHandshake | null {
  if (event.type === 'handshake:error:auth') {
    const key = curve?.publicKey ?? 'of this rank';
    return {
      cause: 'peer-refused-key',
      message: `${peer} does not accept the public key ${key}: add it to security.allowedClients there`,
    };
  }
  if (event.type !== 'handshake:error:protocol') return null;
  if (event.error.code === 'ERR_ZMTP_MECHANISM_MISMATCH') {
    return {
      cause: 'peer-mechanism',
      message:
        curve === null
          ? `${peer} demands encryption: set security.curve here too`
          : `${peer} does not encrypt, and is not spoken to: set security.curve there too`,
    };
  }
  return {
    cause: 'peer-protocol',
    message: `${peer} does not speak ZeroMQ as peers do (${event.error.code}): check the address`,
  };
}

export function closedByPeer(peer: string, serverKey: string | null): RefusedHandshake {
  return {
    cause: 'peer-closed',
    message:
      serverKey === null
        ? `${peer} closes connections during the handshake: check the address`
        : `${peer} closes connections during the handshake: it is likely not the holder of ${serverKey}; ` +
          'set its public key in security.curve.peers',
  };
}
