/** Why a frame never left, or never reached the listener. */
export type DropReason =
  | 'bad-endpoint'
  | 'frame-too-large'
  /** An answer that does not fit on the connection of the question, or whose queue is full. */
  | 'reply-dropped'
  | 'queue-full'
  | 'too-many-peers'
  | 'unresolved-host'
  | 'socket-error'
  | 'disconnected'
  | 'forgotten'
  | 'refused'
  | 'closed'
  | 'malformed-message';

/**
 * Why a connection never came to carry frames. At our socket: a client whose key is not allowed, one that expects another server key,
 * one with another mechanism (plaintext against CURVE, or the reverse), or something that is no ZeroMQ. At a peer's: it refused our key,
 * has another mechanism, or closed the connection (which is all one learns of a wrong server key).
 */
export type HandshakeRefusal =
  | 'client-not-allowed'
  | 'client-expects-other-key'
  | 'client-mechanism'
  | 'client-protocol'
  /** Nothing was wrong with the client: this process may open no more files. */
  | 'client-no-descriptor'
  | 'peer-refused-key'
  | 'peer-mechanism'
  | 'peer-protocol'
  | 'peer-closed';

export interface MessengerCounts {
  /** Handed to an established connection; the peer need not have read them. */
  readonly framesSent: number;
  readonly bytesSent: number;
  readonly framesReceived: number;
  readonly bytesReceived: number;
  readonly connectionsLost: number;
  readonly framesDropped: Readonly<Record<DropReason, number>>;
  readonly handshakesRefused: Readonly<Record<HandshakeRefusal, number>>;
}

/** What one messenger counted since it was opened. */
export class MessengerCounters {
  #framesSent = 0;
  #bytesSent = 0;
  #framesReceived = 0;
  #bytesReceived = 0;
  #connectionsLost = 0;
  readonly #dropped: Record<DropReason, number> = {
    'bad-endpoint': 0,
    'frame-too-large': 0,
    'reply-dropped': 0,
    'queue-full': 0,
    'too-many-peers': 0,
    'unresolved-host': 0,
    'socket-error': 0,
    disconnected: 0,
    forgotten: 0,
    refused: 0,
    closed: 0,
    'malformed-message': 0,
  };
  readonly #refused: Record<HandshakeRefusal, number> = {
    'client-not-allowed': 0,
    'client-expects-other-key': 0,
    'client-mechanism': 0,
    'client-protocol': 0,
    'client-no-descriptor': 0,
    'peer-refused-key': 0,
    'peer-mechanism': 0,
    'peer-protocol': 0,
    'peer-closed': 0,
  };

  sent(bytes: number): void {
    this.#framesSent++;
    this.#bytesSent += bytes;
  }

  received(bytes: number): void {
    this.#framesReceived++;
    this.#bytesReceived += bytes;
  }

  connectionLost(): void {
    this.#connectionsLost++;
  }

  handshakeRefused(cause: HandshakeRefusal): void {
    this.#refused[cause]++;
  }

  dropped(reason: DropReason, count = 1): void {
    this.#dropped[reason] += count;
  }

  snapshot(): MessengerCounts {
    return {
      framesSent: this.#framesSent,
      bytesSent: this.#bytesSent,
      framesReceived: this.#framesReceived,
      bytesReceived: this.#bytesReceived,
      connectionsLost: this.#connectionsLost,
      framesDropped: { ...this.#dropped },
      handshakesRefused: { ...this.#refused },
    };
  }
}
