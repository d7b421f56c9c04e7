import { type KvTransceiverError, type PeerLostError, TransferTimeoutError } from '../errors.js';
import type { Farewells } from './farewells.js';
import { isSameProcess, type Peer } from './peer.js';
import type { ReceiveBook } from './receive-book.js';
import type { RxSession } from './rx-session.js';
import type { RxWriter } from './rx-writer.js';
import type { SessionWalks } from './session-walks.js';
import type { WriterAsking } from './writer-asking.js';
import type { WriterTalk } from './writer-talk.js';

export interface ReceiverPeersOptions {
  readonly book: ReceiveBook;
  readonly asking: WriterAsking;
  readonly talk: WriterTalk;
  readonly farewells: Farewells;
  readonly walks: SessionWalks;
  readonly peerAt: (endpoint: string) => Peer | null;
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
 * Ordering: thousands may wait for one peer, so that all of it is done in portions; what a session is when it is met decides.
 */
export class ReceiverPeers {
  readonly #o: ReceiverPeersOptions;

  constructor(options: ReceiverPeersOptions) {
    this.#o = options;
  }

  onReady(peer: Peer): void {
    const { book, farewells, walks, guarded, greet } = this.#o;
    let isMissed = false;
    void walks.run<RxSession>({
      what: `the news that ${peer.name} is there`,
      begin: () => {
        if (this.#isThere(peer)) farewells.onPeerReady(peer);
        return book.sessions.filter((session) => concerns(session, peer.endpoint));
      },
      each: (session) =>
        guarded(session, (one) => {
          const action = this.#actionAt(one, peer);
          if (action === null) return;
          // Page addresses go only to a process that is there (I7).
          if (this.#isThere(peer)) action(one);
          else isMissed = true;
        }),
      end: () => {
        if (isMissed) greet(peer.endpoint);
      },
    });
  }

  onRefused(endpoint: string, error: KvTransceiverError): void {
    const { book, farewells, walks, guarded, greet } = this.#o;
    // Who comes to wait for this endpoint from now on has it asked anew.
    const { sessions } = book;
    let mayStillWrite = false;
    void walks.run<RxSession>({
      what: `the refusal of ${endpoint}`,
      begin: () => {
        farewells.onPeerRefused(endpoint);
        return sessions;
      },
      each: (session) =>
        guarded(session, (one) => {
          const writer = one.writerAt(endpoint);
          if (writer?.asked !== true) this.#failUnasked(one, writer, endpoint, error);
          else if (!writer.drained && isHeld(one)) mayStillWrite = true;
        }),
      // A writer that was stopped or cut off for long: as long as pages wait for its word, it is greeted, so that it can give it. One that
      // answers with a refusal would only refuse again.
      end: () => {
        if (mayStillWrite && error instanceof TransferTimeoutError) greet(endpoint);
      },
    });
  }

  onLost(peer: Peer, error: PeerLostError): void {
    const { book, farewells, talk, walks, guarded, greet, onFailed } = this.#o;
    const writerOf = ({ writers }: RxSession): RxWriter | undefined => writers.find((writer) => writer.peer === peer);
    let mayStillWrite = false;
    void walks.run<RxSession>({
      what: `the loss of ${peer.name}`,
      begin: () => {
        farewells.onPeerLost(peer);
        return book.sessions.filter((session) => writerOf(session) !== undefined);
      },
      each: (session) =>
        guarded(session, (one) => {
          const writer = writerOf(one);
          if (writer === undefined || !isHeld(one)) return;
          if (writer.outcome !== 'DONE') onFailed(one, writer, error, null);
          talk.stop(writer);
          if (!writer.drained) mayStillWrite = true;
        }),
      // It may only have been cut off: greeted again, it hears the cancel and can say that it stopped, before pages go without proof.
      end: () => {
        if (mayStillWrite) greet(peer.endpoint);
      },
    });
  }

  /** Its process has ended, so that nothing it started can write here any more. */
  onFenced(peer: Peer): void {
    const { book, walks, guarded, releaseIfDrained } = this.#o;
    void walks.run<RxSession>({
      what: `the end of ${peer.name}`,
      begin: () => book.sessions.filter(({ writers }) => writers.some((writer) => isSameProcess(writer.peer, peer))),
      each: (session) =>
        guarded(session, (one) => {
          for (const writer of one.writers) if (isSameProcess(writer.peer, peer)) writer.reportedDrained = true;
          releaseIfDrained(one);
        }),
    });
  }

  /** What this session has waited for, or has to tell, now that the peer is there. */
  #actionAt(session: RxSession, peer: Peer): ((session: RxSession) => void) | null {
    const { asking, awaitsAux, tellCancel } = this.#o;
    if (!isHeld(session)) return null;
    if (session.instance === null) {
      const waits = session.outcome === null && session.infoEndpoint === peer.endpoint && !awaitsAux(session);
      return waits ? (one) => asking.choose(one, peer) : null;
    }
    const writer = session.writerAt(peer.endpoint);
    if (writer === undefined) return null;
    if (session.outcome === null && session.wants(writer))
      return writer.asked ? null : (one) => asking.ask(one, writer, peer);
    if (writer.drained || !isSameProcess(writer.peer, peer)) return null;
    return (one) => {
      // It was only away: a question it had not read when this session ended may still make it write, so it must hear the cancel now.
      writer.peer = peer;
      tellCancel(one, writer, one.error?.message ?? 'the request ended');
    };
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

  #isThere(peer: Peer): boolean {
    return this.#o.peerAt(peer.endpoint) === peer;
  }
}

/** It may wait for the peer at this endpoint, or have something to tell it. */
function concerns(session: RxSession, endpoint: string): boolean {
  return session.instance === null ? session.infoEndpoint === endpoint : session.writerAt(endpoint) !== undefined;
}

/** One that gave up its pages has nothing to say, or to wait for, any more. */
function isHeld({ state }: RxSession): boolean {
  return state !== 'released';
}
