import type { MessengerCounts } from './messenger-counters.js';

/**
 * Where a frame came from, as the transport knows it: nothing that a frame says changes it. `accepted`: a connection that somebody made to us,
 * named by a token that no other connection ever has. `dialed`: the connection that we made to this endpoint; with keys, what answers there
 * holds the key expected of it.
 */
export type FrameOrigin =
  | { readonly kind: 'accepted'; readonly connection: string }
  | { readonly kind: 'dialed'; readonly endpoint: string };

/**
 * Carries control frames between ranks. Nothing may assume order between peers, nor that a frame sent is a frame received.
 */
export interface Messenger {
  /** Where peers reach this rank, `tcp://host:port`. */
  readonly endpoint: string;
  /** Endpoints that can be sent to at once. */
  readonly maxConnections: number;
  /** Never waits and never throws for a peer that is gone: the frame is then lost and counted. */
  send(endpoint: string, frame: Uint8Array): void;
  /**
   * Answers on the connection that a frame came by: no address is looked up and none is connected to. A frame larger than `MAX_REPLY_BYTES`, or
   * for a connection that is gone, is lost and counted.
   */
  reply(origin: FrameOrigin, frame: Uint8Array): void;
  /** One listener. The frame is the callee's to keep. */
  onFrame(listener: (frame: Uint8Array, origin: FrameOrigin) => void): void;
  /** The transport noticed that the connection to this endpoint broke. It may come back; that is another notice's business. */
  onDisconnect(listener: (endpoint: string) => void): void;
  /** Drops the connection and what is queued for it. */
  forget(endpoint: string): void;
  /** What was carried and dropped since it was opened. */
  counts?(): MessengerCounts;
  /** Sends what can be sent within `lingerMs`, then closes. */
  close(lingerMs: number): Promise<void>;
}
