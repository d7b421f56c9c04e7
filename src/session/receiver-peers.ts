import { type KvTransceiverError, type PeerLostError, TransferTimeoutError } from '../errors.js';
import type { Farewells } from './farewells.js';
import { isSameProcess, type Peer } from './peer.js';
import type { ReceiveBook } from './receive-book.js';
import type { RxSession } from './rx-session.js';
import type { RxWriter } from './rx-writer.js';
import type { WriterAsking } from './writer-asking.js';
import type { WriterTalk } from './writer-talk.js';

export interface ReceiverPeersOptions {
  readonly book: ReceiveBook;
  readonly asking: WriterAsking;
  readonly talk: WriterTalk;
  readonly farewells: Farewells;
  readonly greet: (endpoint: string) => void;
  readonly doubt: (endpoint: string) => void;
  /** What goes wrong with one receive ends that one. */
  readonly guarded: (session: RxSession, action: (session: RxSession) => void) => void;
  /** It asks nobody before it has its aux slot. */
  readonly awaitsAux: (session: RxSession) => boolean;
  readonly tellCancel: (session: RxSession, writer: RxWriter, reason: string) => void;
  readonly releaseIfDrained: (session: RxSession) => void;
  /** @param writer null: none can be asked. `unreachable`: an endpoint that is the reason, so that nothing more is said there */
  readonly onFailed: (
    session: RxSession,
    writer: RxWriter | null,
    error: KvTransceiverError,
    unreachable: string | null,
  ) => void;
}

/**
 * Role: what receives make of their peers' coming and going.
 * Why not in portions, as all else that happens to thousands at once: a session that has not heard yet that its writer is lost would go on asking at an
 *   address where another process may be by then, and its pages would be written by that one (I7).
 */
export class ReceiverPeers {
  readonly #o: ReceiverPeersOptions;

  constructor(options: ReceiverPeersOptions) {
    this.#o = options;
  }

  onReady(peer: Peer): void {
    const { book, farewells, guarded } = this.#o;
    farewells.onPeerReady(peer);
    for (const session of book.sessions) guarded(session, (one) => this.#peerIsReady(one, peer));
  }

  onRefused(endpoint: string, error: KvTransceiverError): void {
    const { book, farewells, guarded, greet } = this.#o;
    farewells.onPeerRefused(endpoint);
    let mayStillWrite = false;
    for (const session of book.sessions)
      guarded(session, (one) => {
        const writer = one.writerAt(endpoint);
        if (writer?.asked !== true) this.#failUnasked(one, writer, endpoint, error);
        else mayStillWrite ||= !writer.drained;
      });
    // A writer that was stopped or cut off for long: as long as pages wait for its word, it is greeted, so that it can give it. One that
    // answers with a refusal would only refuse again.
    if (mayStillWrite && error instanceof TransferTimeoutError) greet(endpoint);
  }

  onLost(peer: Peer, error: PeerLostError): void {
    const { book, farewells, talk, guarded, greet, onFailed } = this.#o;
    farewells.onPeerLost(peer);
    let mayStillWrite = false;
    for (const session of book.sessions)
      guarded(session, (one) => {
        const writer = one.writers.find((candidate) => candidate.peer === peer);
        if (writer === undefined) return;
        if (writer.outcome !== 'DONE') onFailed(one, writer, error, null);
        talk.stop(writer);
        if (!writer.drained) mayStillWrite = true;
      });
    // It may only have been cut off: greeted again, it hears the cancel and can say that it stopped, before pages go without proof.
    if (mayStillWrite) greet(peer.endpoint);
  }

  /** Its process has ended, so that nothing it started can write here any more. */
  onFenced(peer: Peer): void {
    const { book, guarded, releaseIfDrained } = this.#o;
    for (const session of book.sessions)
      guarded(session, (one) => {
        for (const writer of one.writers) if (isSameProcess(writer.peer, peer)) writer.reportedDrained = true;
        releaseIfDrained(one);
      });
  }

  #peerIsReady(session: RxSession, peer: Peer): void {
    const { asking, awaitsAux, tellCancel } = this.#o;
    if (session.instance === null) {
      if (session.outcome === null && session.infoEndpoint === peer.endpoint && !awaitsAux(session))
        asking.choose(session, peer);
      return;
    }
    const writer = session.writerAt(peer.endpoint);
    if (writer === undefined) return;
    if (session.outcome === null && session.wants(writer)) {
      if (!writer.asked) asking.ask(session, writer, peer);
    } else if (!writer.drained && isSameProcess(writer.peer, peer)) {
      // It was only away: a question it had not read when this session ended may still make it write, so it must hear the cancel now.
      writer.peer = peer;
      tellCancel(session, writer, session.error?.message ?? 'the request ended');
    }
  }

  #failUnasked(session: RxSession, writer: RxWriter | undefined, endpoint: string, error: KvTransceiverError): void {
    const { awaitsAux, doubt, onFailed } = this.#o;
    if (session.outcome !== null) return;
    if (session.instance === null) {
      if (session.infoEndpoint === endpoint && !awaitsAux(session)) onFailed(session, null, error, endpoint);
    } else if (writer !== undefined) {
      doubt(session.infoEndpoint);
      onFailed(session, writer, error, endpoint);
    }
  }
}
