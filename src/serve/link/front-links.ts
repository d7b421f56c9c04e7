import type { Clock } from '../../clock.js';
import { WireError } from '../../errors.js';
import type { Messenger } from '../../wire/messenger.js';
import { decodeWorkerFrame } from './link-codec.js';
import type { IdOrigin, LinkFrame, WorkerMessage, WorkerRole } from './link-message.js';
import { WorkerLink } from './worker-link.js';

export interface FrontLinksOptions {
  readonly clock: Clock;
  /** Owned from now on. */
  readonly messenger: Messenger;
  /** What workers must run; see `engineLabel`. */
  readonly engine: string;
  /** Never the same twice, not guessable. */
  readonly newSession: () => bigint;
  /** Of the requests that are sent from now on. */
  readonly ids: () => IdOrigin;
  /** A worker has another front that makes these. */
  readonly onIdsTaken: (taken: IdOrigin) => void;
  readonly onWarning: (message: string) => void;
}

/**
 * Role: the front's end of its links to the workers of one side: one messenger, one session a worker.
 * Ownership: owns the messenger; `close` ends it and every link.
 */
export class FrontLinks {
  readonly #o: FrontLinksOptions;
  readonly #links: WorkerLink[] = [];
  readonly #bySession = new Map<bigint, WorkerLink>();
  #badFrames = 0;

  constructor(options: FrontLinksOptions) {
    this.#o = options;
    const { messenger } = options;
    messenger.onFrame((bytes) => this.#onFrame(bytes));
    messenger.onDisconnect((endpoint) => {
      for (const link of this.#links) if (link.endpoint === endpoint) link.disconnected();
    });
  }

  /** Frames that were none, since the start. */
  get badFrames(): number {
    return this.#badFrames;
  }

  add(name: string, role: WorkerRole): WorkerLink {
    const { clock, messenger, engine, newSession, ids, onIdsTaken, onWarning } = this.#o;
    const link = new WorkerLink({
      name,
      role,
      clock,
      messenger,
      engine,
      newSession,
      ids,
      onIdsTaken,
      onWarning,
      onSession: (owner, before, now) => {
        if (before !== null) this.#bySession.delete(before);
        if (now !== null) this.#bySession.set(now, owner);
      },
    });
    this.#links.push(link);
    return link;
  }

  /** Workers that are up hear that `ids` gives others now; those that are not will with the next greeting. */
  announceIds(): void {
    for (const link of this.#links) link.announceIds();
  }

  async close(lingerMs: number): Promise<void> {
    for (const link of this.#links) link.detach('the front is closing');
    await this.#o.messenger.close(lingerMs);
  }

  #onFrame(bytes: Uint8Array): void {
    let frame: LinkFrame<WorkerMessage>;
    try {
      frame = decodeWorkerFrame(bytes);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      if (this.#badFrames++ === 0) this.#o.onWarning(`a frame that no worker of this version sends: ${error.message}`);
      return;
    }
    // Sessions are random: what nobody here opened is of an earlier one, or of a stranger.
    this.#bySession.get(frame.session)?.receive(frame);
  }
}
