import type { Clock, Timer } from '../../clock.js';
import type {
  DisaggServer,
  ServerCall,
  ServerCondition,
  ServerEvents,
  ServerRequest,
} from '../../coordinator/disagg-server.js';
import { ArgumentError, type KvTransceiverError, PeerLostError, StateError, WireError } from '../../errors.js';
import type { CallbackGuard } from '../../session/callback-guard.js';
import type { TurnBudget } from '../../turn-budget.js';
import type { Messenger } from '../../wire/messenger.js';
import { checkFrontMessage } from './link-codec.js';
import { HELLO_INTERVAL_MS, PING_INTERVAL_MS, SILENCE_LIMIT_MS } from './link-limits.js';
import type { FrontMessage, IdOrigin, LinkFrame, WorkerMessage, WorkerPhase, WorkerRole } from './link-message.js';
import { LinkOutbox } from './link-outbox.js';
import { RemoteCall } from './remote-call.js';
import { type CallMessage, SessionCalls } from './session-calls.js';

export interface WorkerLinkOptions {
  readonly name: string;
  readonly role: WorkerRole;
  readonly clock: Clock;
  readonly guard: CallbackGuard;
  /** Of all links of one side. */
  readonly turns: TurnBudget;
  readonly messenger: Messenger;
  /** What the worker must run; see `engineLabel`. */
  readonly engine: string;
  readonly newSession: () => bigint;
  readonly ids: () => IdOrigin;
  readonly onIdsTaken: (taken: IdOrigin) => void;
  /** The session that frames of this link carry from now on; null: none. */
  readonly onSession: (link: WorkerLink, before: bigint | null, now: bigint | null) => void;
  readonly onWarning: (message: string) => void;
}

type LinkState =
  | { readonly kind: 'detached'; readonly reason: string }
  | { readonly kind: 'greeting'; readonly reason: string; readonly talk: Talk }
  | { readonly kind: 'up'; readonly talk: Talk; phase: WorkerPhase };

/** One session with one address. */
interface Talk {
  readonly endpoint: string;
  readonly session: bigint;
  readonly outbox: LinkOutbox<FrontMessage>;
  readonly calls: SessionCalls;
  sequence: number;
  lastHeardMs: number;
  timer: Timer | null;
}

type ControlMessage = Exclude<WorkerMessage, CallMessage>;
type Worker = Pick<Extract<WorkerMessage, { type: 'welcome' }>, 'incarnation' | 'infoEndpoint' | 'pid'>;

/** How long an answer to `metrics` is waited for. */
const METRICS_LIMIT_MS = 2000;

/**
 * Role: a worker process as the coordinator sees it.
 * Invariant: whatever happens to the worker or to the connection, every call ends: a session that is not whole any more is given up with all
 *   its calls, and another one is opened. Nothing of an earlier session is ever believed.
 * Ordering: the frames of a session are numbered; one that is missing ends the session.
 */
export class WorkerLink implements DisaggServer {
  readonly name: string;
  readonly #o: WorkerLinkOptions;
  /** Of sessions that are over: calls that are still to be told. */
  readonly #ending = new Map<SessionCalls, Promise<void>>();
  readonly #queries = new Map<number, (text: string | null) => void>();
  #state: LinkState = { kind: 'detached', reason: 'it was not started yet' };
  #known: Worker = { incarnation: 0n, infoEndpoint: '', pid: 0 };
  #nextNumber = 1;
  #lastWarning = '';
  #whenUp: (() => void)[] = [];

  constructor(options: WorkerLinkOptions) {
    this.name = options.name;
    this.#o = options;
  }

  get role(): WorkerRole {
    return this.#o.role;
  }

  get endpoint(): string | null {
    return this.#state.kind === 'detached' ? null : this.#state.talk.endpoint;
  }

  get infoEndpoint(): string | null {
    return this.#known.infoEndpoint || null;
  }

  /** Of the process that answered last; 0: none did. */
  get pid(): number {
    return this.#known.pid;
  }

  /** Those that have not ended, of sessions that are over, too. */
  get liveCalls(): number {
    const current = this.#state.kind === 'detached' ? [] : [this.#state.talk.calls];
    return [...current, ...this.#ending.keys()].reduce((sum, { size }) => sum + size, 0);
  }

  condition(): ServerCondition {
    const { incarnation } = this.#known;
    const state = this.#state;
    if (state.kind !== 'up') return { phase: 'down', incarnation, reason: state.reason };
    return { phase: state.phase, incarnation, reason: state.phase === 'draining' ? 'it is about to end' : '' };
  }

  /**
   * @throws StateError while the worker is down
   * @throws ArgumentError for a request that the worker would not understand
   */
  submit(request: ServerRequest, events: ServerEvents): ServerCall {
    const { promptTokens, maxTokens, params, transferPolicy, sampling = null, stopTokens = [] } = request;
    const state = this.#state;
    if (state.kind !== 'up')
      throw new StateError(`${this.name} is down (${state.reason}); send the request to another`);
    const { outbox, calls } = state.talk;
    const call = this.#nextNumber++;
    const rest = { transferPolicy, sampling, stopTokens };
    const message: FrontMessage = { type: 'submit', call, promptTokens, maxTokens, params, ...rest };
    requireCarriable(message);
    const remote = new RemoteCall(this.name, events, this.#o.guard, () => outbox.say({ type: 'cancel', call }));
    calls.add(call, remote);
    outbox.say(message, promptTokens.byteLength);
    return remote;
  }

  /** When it answers; never for one that refuses or is not there. */
  up(): Promise<void> {
    if (this.#state.kind === 'up') return Promise.resolve();
    return new Promise((resolve) => this.#whenUp.push(resolve));
  }

  /** The worker's metrics as text of the Prometheus format; null when it gives none in time. */
  metrics(): Promise<string | null> {
    const state = this.#state;
    if (state.kind !== 'up') return Promise.resolve(null);
    const query = this.#nextNumber++;
    return new Promise((resolve) => {
      const timer = this.#o.clock.setTimer(METRICS_LIMIT_MS, () => this.#answerQuery(query, null));
      this.#queries.set(query, (text) => {
        timer.cancel();
        resolve(text);
      });
      state.talk.outbox.say({ type: 'metrics', query });
    });
  }

  /** The worker answers at this address from now on. Greets it until it answers, and again whenever it was lost. */
  attach(endpoint: string): void {
    this.detach('it has a new address');
    this.#greet(endpoint, 'it did not answer yet');
  }

  /** There is no worker any more, from now on. Its calls fail, in portions; see `ended`. */
  detach(reason: string): void {
    if (this.#state.kind === 'detached') {
      this.#state = { kind: 'detached', reason };
      return;
    }
    const { kind, talk } = this.#state;
    // First: a goodbye that cannot be said is no loss, after which a worker would be greeted again.
    this.#state = { kind: 'detached', reason };
    if (kind === 'up') {
      talk.outbox.say({ type: 'bye' });
      talk.outbox.flush();
    }
    this.#o.messenger.forget(talk.endpoint);
    this.#o.onSession(this, talk.session, null);
    this.#endTalk(talk, reason);
  }

  /** When every call of a session that is over has ended. */
  async ended(): Promise<void> {
    await Promise.all(this.#ending.values());
  }

  /** Says which request ids come from now on. */
  announceIds(): void {
    if (this.#state.kind === 'up') this.#greetIn(this.#state.talk);
  }

  /** The connection broke: what was on its way is gone. */
  disconnected(): void {
    if (this.#state.kind === 'up') this.#lose('its connection broke');
  }

  receive({ sequence, messages }: LinkFrame<WorkerMessage>): void {
    const state = this.#state;
    if (state.kind === 'detached') return;
    const { talk } = state;
    talk.lastHeardMs = this.#o.clock.now();
    if (sequence !== 0 && sequence !== ++talk.sequence) {
      this.#lose(`frame ${talk.sequence} of its session was lost`);
      return;
    }
    let said: CallMessage[] = [];
    for (const message of messages) {
      if (isOfCall(message)) {
        said.push(message);
        continue;
      }
      talk.calls.hear(said);
      said = [];
      // This message, or one before it, may end the session.
      if (!this.#isCurrent(talk)) return;
      const error = this.#o.guard.run(`a message of ${this.name}`, () => this.#onMessage(message));
      if (error !== null) this.#loseTalk(talk, error.message);
    }
    talk.calls.hear(said);
  }

  #onMessage(message: ControlMessage): void {
    switch (message.type) {
      case 'welcome':
        this.#onWelcome(message);
        break;
      case 'refused':
        this.#onRefused(message);
        break;
      case 'unknown':
        if (this.#state.kind === 'up') this.#lose('it does not know this session any more');
        break;
      case 'pong':
        if (this.#state.kind === 'up') this.#state.phase = message.phase;
        break;
      case 'metrics':
        this.#answerQuery(message.query, message.text);
        break;
    }
  }

  #onWelcome({ incarnation, infoEndpoint, pid, phase }: Extract<WorkerMessage, { type: 'welcome' }>): void {
    if (this.#state.kind !== 'greeting') return;
    const { talk } = this.#state;
    this.#known = { incarnation, infoEndpoint, pid };
    this.#lastWarning = '';
    this.#state = { kind: 'up', talk, phase };
    this.#arm(talk, PING_INTERVAL_MS, () => this.#ping(talk));
    for (const resolve of this.#whenUp.splice(0)) resolve();
  }

  #onRefused({ reason, takenIds }: Extract<WorkerMessage, { type: 'refused' }>): void {
    if (takenIds !== null) this.#o.onIdsTaken(takenIds);
    if (this.#state.kind !== 'greeting') return;
    this.#warn(`${this.name} at ${this.#state.talk.endpoint} refuses this front: ${reason}`);
    this.#state = { ...this.#state, reason };
  }

  #greet(endpoint: string, reason: string): void {
    const { clock, guard, turns, messenger, newSession } = this.#o;
    const session = newSession();
    const onBroken = (error: KvTransceiverError): void => this.#loseTalk(talk, error.message);
    const outbox = new LinkOutbox<FrontMessage>({ clock, guard, messenger, endpoint, session, onBroken });
    const calls = new SessionCalls({ worker: this.name, guard, turns, onBroken });
    const talk: Talk = { endpoint, session, outbox, calls, sequence: 0, lastHeardMs: clock.now(), timer: null };
    this.#state = { kind: 'greeting', reason, talk };
    this.#o.onSession(this, null, session);
    this.#sayHello(talk);
  }

  #greetIn({ outbox }: Talk): void {
    const { role, engine, messenger, ids } = this.#o;
    outbox.sayApart({ type: 'hello', endpoint: messenger.endpoint, role, engine, ids: ids() });
  }

  #sayHello(talk: Talk): void {
    this.#o.guard.run(`the greeting of ${this.name}`, () => this.#greetIn(talk));
    this.#arm(talk, HELLO_INTERVAL_MS, () => this.#sayHello(talk));
  }

  #ping(talk: Talk): void {
    const silentMs = this.#o.clock.now() - talk.lastHeardMs;
    if (silentMs > SILENCE_LIMIT_MS) {
      this.#lose(`it said nothing for ${Math.round(silentMs / 1000)} s`);
      return;
    }
    talk.outbox.say({ type: 'ping', endpoint: this.#o.messenger.endpoint });
    this.#arm(talk, PING_INTERVAL_MS, () => this.#ping(talk));
  }

  #arm(talk: Talk, delayMs: number, act: () => void): void {
    talk.timer?.cancel();
    talk.timer = this.#o.clock.setTimer(delayMs, () => {
      const error = this.#o.guard.run(`a timer of ${this.name}`, act);
      if (error !== null && this.#state.kind === 'up') this.#loseTalk(talk, error.message);
    });
  }

  #loseTalk(talk: Talk, reason: string): void {
    if (this.#isCurrent(talk)) this.#lose(reason);
  }

  #isCurrent(talk: Talk): boolean {
    return this.#state.kind !== 'detached' && this.#state.talk === talk;
  }

  /** Gives the session up and opens another one. */
  #lose(reason: string): void {
    if (this.#state.kind === 'detached') return;
    const { talk } = this.#state;
    this.#warn(`${this.name} at ${talk.endpoint} was lost: ${reason}`);
    this.#o.onSession(this, talk.session, null);
    this.#greet(talk.endpoint, reason);
    this.#endTalk(talk, reason);
  }

  /** Last of all: nobody who hears of a call's end finds the session still up. */
  #endTalk({ timer, outbox, calls }: Talk, reason: string): void {
    timer?.cancel();
    outbox.close();
    for (const query of [...this.#queries.keys()]) this.#answerQuery(query, null);
    const message = `${this.name} was lost: ${reason}`;
    const ended = calls.end(() => new PeerLostError(message, { peer: this.name }));
    this.#ending.set(
      calls,
      ended.then(() => void this.#ending.delete(calls)),
    );
  }

  #answerQuery(query: number, text: string | null): void {
    const answer = this.#queries.get(query);
    this.#queries.delete(query);
    answer?.(text);
  }

  #warn(message: string): void {
    if (message === this.#lastWarning) return;
    this.#lastWarning = message;
    this.#o.onWarning(message);
  }
}

function isOfCall(message: WorkerMessage): message is CallMessage {
  return message.type === 'answer' || message.type === 'tokens' || message.type === 'done';
}

/** @throws ArgumentError */
function requireCarriable(message: FrontMessage): void {
  try {
    checkFrontMessage(message);
  } catch (cause) {
    if (!(cause instanceof WireError)) throw cause;
    throw new ArgumentError(`the request cannot be sent to a worker: ${cause.message}`, { cause });
  }
}
