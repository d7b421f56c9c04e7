import type { MessengerCounts } from './messenger-counters.js';

/**
 * Carries control frames between ranks. Nothing may assume order between peers, nor that a frame sent is a frame received.
 */
export interface Messenger {
  /** Where peers reach this rank, `tcp://host:port`. */
  readonly endpoint: string;
  /** Never waits and never throws for a peer that is gone: the frame is then lost and counted. */
  send(endpoint: string, frame: Uint8Array): void;
  /** One listener. The frame is the callee's to keep. */
  onFrame(listener: (frame: Uint8Array) => void): void;
  /** The transport noticed that the connection to this endpoint broke. It may come back; that is another notice's business. */
  onDisconnect(listener: (endpoint: string) => void): void;
  /** Drops the connection and what is queued for it. */
  forget(endpoint: string): void;
  /** What was carried and dropped since it was opened. */
  counts?(): MessengerCounts;
  /** Sends what can be sent within `lingerMs`, then closes. */
  close(lingerMs: number): Promise<void>;
}
