import type { Clock, Timer } from '../../clock.js';
import type { DisaggServer } from '../../coordinator/disagg-server.js';
import { WireError } from '../../errors.js';
import { CallbackGuard, INTERNAL_ERRORS } from '../../session/callback-guard.js';
import { Counters } from '../../session/counters.js';
import { GuardedClock } from '../../session/guarded-clock.js';
import type { Messenger } from '../../wire/messenger.js';
import { FrontSession } from './front-session.js';
import { decodeFrontFrame } from './link-codec.js';
import { MAX_SESSIONS, PING_INTERVAL_MS, SILENCE_LIMIT_MS } from './link-limits.js';
import type { FrontMessage, IdOrigin, LinkFrame, WorkerPhase, WorkerRole } from './link-message.js';
import { sayOnce } from './link-outbox.js';

export interface LinkHostOptions {
  readonly clock: Clock;
  /** Owned from now on. */
  readonly messenger: Messenger;
  readonly role: WorkerRole;
  /** What this worker runs; see `engineLabel`. */
  readonly engine: string;
  readonly incarnation: bigint;
  readonly infoEndpoint: string;
  readonly pid: number;
  readonly server: Pick<DisaggServer, 'submit'>;
  /** Metrics of this process as text of the Prometheus format. */
  readonly metrics: () => Promise<string>;
  readonly onWarning: (message: string) => void;
}

/**
 * Role: the worker's end of its links to fronts: whoever can connect may open a session, and each session's requests are its own.
 * Invariant: a front that is gone leaves nothing behind: its requests are cancelled when its connection breaks, when it opens another session,
 *   and when it has been silent for too long.
 * Ownership: owns the messenger; the server stays the caller's.
 * Errors: what goes wrong with a request ends it, what goes wrong with a session ends that; both are counted (`internal_errors`).
 */
export class LinkHost {
  readonly #o: LinkHostOptions;
  readonly #sessions = new Map<bigint, FrontSession>();
  #phase: WorkerPhase = 'ready';
  #sweepTimer: Timer;
  readonly #counters = new Counters();
  readonly #guard: CallbackGuard;
  #badFrames = 0;

  constructor(options: LinkHostOptions) {
    const { messenger, clock, onWarning } = options;
    const guard = new CallbackGuard({ clock, counters: this.#counters, warn: onWarning });
    this.#guard = guard;
    this.#o = {
      ...options,
      clock: new GuardedClock(clock, guard),
      onWarning: (message) => void guard.run('the log', () => onWarning(message)),
    };
    messenger.onFrame((bytes) => void guard.run('a frame of a front', () => this.#onFrame(bytes)));
    messenger.onDisconnect((endpoint) => this.#endWhere((session) => session.endpoint === endpoint));
    this.#sweepTimer = this.#armSweep();
  }

  get endpoint(): string {
    return this.#o.messenger.endpoint;
  }

  get sessionCount(): number {
    return this.#sessions.size;
  }

  get liveCalls(): number {
    return [...this.#sessions.values()].reduce((sum, { liveCalls }) => sum + liveCalls, 0);
  }

  /** What frames, timers and handlers would have thrown. */
  get internalErrors(): number {
    return this.#counters.get(INTERNAL_ERRORS);
  }

  /** Tells the fronts to send nothing new; what is under way goes on. */
  drain(): void {
    this.#phase = 'draining';
    for (const session of this.#sessions.values()) session.sayPhase(this.#phase);
  }

  async close(lingerMs: number): Promise<void> {
    this.#sweepTimer.cancel();
    for (const session of this.#sessions.values()) session.flush();
    this.#endWhere(() => true);
    await this.#o.messenger.close(lingerMs);
  }

  #onFrame(bytes: Uint8Array): void {
    let frame: LinkFrame<FrontMessage>;
    try {
      frame = decodeFrontFrame(bytes);
    } catch (error) {
      if (!(error instanceof WireError)) throw error;
      if (this.#badFrames++ === 0) this.#o.onWarning(`a frame that no front of this version sends: ${error.message}`);
      return;
    }
    const known = this.#sessions.get(frame.session);
    const [first] = frame.messages;
    if (first?.type === 'hello') this.#onHello(frame.session, first);
    else if (known === undefined) this.#onStranger(frame);
    else if (!this.#hear(known, frame)) this.#end(frame.session);
  }

  /** @returns false when the session is over */
  #hear(session: FrontSession, frame: LinkFrame<FrontMessage>): boolean {
    let goesOn = false;
    this.#guard.run(`a frame of ${session.endpoint}`, () => {
      goesOn = session.receive(frame, this.#phase);
    });
    return goesOn;
  }

  #onHello(session: bigint, { endpoint, role, engine, ids }: Extract<FrontMessage, { type: 'hello' }>): void {
    const { messenger, clock, incarnation, infoEndpoint, pid, server, metrics } = this.#o;
    const refuse = (reason: string, takenIds: IdOrigin | null = null): void =>
      sayOnce({ messenger, endpoint, session, message: { type: 'refused', reason, takenIds } });
    const problem = this.#problemWith(role, engine);
    if (problem !== null) {
      refuse(problem);
      return;
    }
    if (this.#hasAnotherFront(endpoint, ids)) {
      refuse(
        `another front here makes the same request ids (node_id ${ids.nodeId}, process ${ids.processId}); give each front a node_id of its own`,
        ids,
      );
      return;
    }
    const known = this.#sessions.get(session);
    if (known !== undefined) known.ids = ids;
    else {
      // A front has one session: this one takes the place of what it had before.
      this.#endWhere((other) => other.endpoint === endpoint);
      if (this.#sessions.size >= MAX_SESSIONS) {
        refuse(`this worker serves ${MAX_SESSIONS} fronts already; end some of them`);
        return;
      }
      const guard = this.#guard;
      const onBroken = (): void => this.#end(session);
      const own = { endpoint, session, ids, onBroken };
      this.#sessions.set(session, new FrontSession({ clock, guard, messenger, server, metrics, ...own }));
    }
    const welcome = { type: 'welcome', incarnation, infoEndpoint, pid, phase: this.#phase } as const;
    sayOnce({ messenger, endpoint, session, message: welcome });
  }

  /** Two fronts with the same ids would speak of one transfer and mean two. A session of the same endpoint is of the same front. */
  #hasAnotherFront(endpoint: string, { nodeId, processId }: IdOrigin): boolean {
    return [...this.#sessions.values()].some(
      (other) => other.endpoint !== endpoint && other.ids.nodeId === nodeId && other.ids.processId === processId,
    );
  }

  #problemWith(role: WorkerRole, engine: string): string | null {
    if (role !== this.#o.role)
      return `this worker is a ${this.#o.role} server, and was asked to be a ${role} server; check the urls`;
    if (engine !== this.#o.engine)
      return `this worker runs ${this.#o.engine}, and was asked for ${engine}; start both from the same file`;
    return null;
  }

  /** A front whose session ended here must not wait for answers. */
  #onStranger({ session, messages }: LinkFrame<FrontMessage>): void {
    const { messenger } = this.#o;
    for (const message of messages)
      if (message.type === 'ping')
        sayOnce({ messenger, endpoint: message.endpoint, session, message: { type: 'unknown' } });
  }

  #armSweep(): Timer {
    const { clock } = this.#o;
    return clock.setTimer(PING_INTERVAL_MS, () => {
      this.#sweepTimer = this.#armSweep();
      const oldestMs = clock.now() - SILENCE_LIMIT_MS;
      this.#endWhere(({ lastHeardMs }) => lastHeardMs < oldestMs);
    });
  }

  #endWhere(matches: (session: FrontSession) => boolean): void {
    for (const [key, session] of this.#sessions)
      if (matches(session)) this.#guard.run(`the end of ${session.endpoint}`, () => this.#end(key));
  }

  #end(key: bigint): void {
    const session = this.#sessions.get(key);
    if (session === undefined) return;
    this.#sessions.delete(key);
    session.end();
    const isUsed = [...this.#sessions.values()].some(({ endpoint }) => endpoint === session.endpoint);
    if (!isUsed) this.#o.messenger.forget(session.endpoint);
  }
}
