/** Why a frame never left, or never reached the listener. */
export type DropReason =
  | 'bad-endpoint'
  | 'frame-too-large'
  | 'queue-full'
  | 'too-many-peers'
  | 'unresolved-host'
  | 'socket-error'
  | 'disconnected'
  | 'forgotten'
  | 'closed'
  | 'malformed-message';

export interface MessengerCounts {
  /** Handed to an established connection; the peer need not have read them. */
  readonly framesSent: number;
  readonly bytesSent: number;
  readonly framesReceived: number;
  readonly bytesReceived: number;
  readonly connectionsLost: number;
  readonly framesDropped: Readonly<Record<DropReason, number>>;
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
    'queue-full': 0,
    'too-many-peers': 0,
    'unresolved-host': 0,
    'socket-error': 0,
    disconnected: 0,
    forgotten: 0,
    closed: 0,
    'malformed-message': 0,
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
    };
  }
}
