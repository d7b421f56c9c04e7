import type { KvTransceiverError } from '../../errors.js';
import { inPortions } from '../../in-portions.js';
import type { CallbackGuard } from '../../session/callback-guard.js';
import type { TurnBudget } from '../../turn-budget.js';
import { MAX_CALLS } from './link-limits.js';
import type { WorkerMessage } from './link-message.js';
import type { RemoteCall } from './remote-call.js';

/** What a worker says of one call. */
export type CallMessage = Extract<WorkerMessage, { type: 'answer' | 'tokens' | 'done' }>;

/** Messages that may wait. Who says more than is kept up with is held up by its connection, not by memory. */
const MAX_WAITING = MAX_CALLS;

export interface SessionCallsOptions {
  readonly worker: string;
  readonly guard: CallbackGuard;
  readonly turns: TurnBudget;
  /** What was said makes no sense: nothing after it is believed, and `end` is expected. */
  readonly onBroken: (error: KvTransceiverError) => void;
}

interface Ending {
  readonly errorOf: () => KvTransceiverError;
  /** Goes on where it was, whatever is taken away meanwhile. */
  readonly left: Iterator<[number, RemoteCall]>;
}

/**
 * Role: the calls of one session with a worker, and what the worker says of them.
 * Why in portions: a decode step has a token for each of hundreds of calls, and a worker that is gone ends all of its calls; each of those costs
 *   its user's connection some writes, or the whole way to another worker.
 * Invariant: each call ends once: by its own `done`, or by the end of the session. What was heard before that end still counts.
 * Ordering: as it was heard, whatever happens between two portions. A call that is cancelled or ended meanwhile takes no more of it.
 */
export class SessionCalls {
  readonly #o: SessionCallsOptions;
  readonly #calls = new Map<number, RemoteCall>();
  /** Frames of messages, the oldest first, of which the first `#done` are done. */
  readonly #heard: (readonly CallMessage[])[] = [];
  #done = 0;
  #waiting = 0;
  #isAtWork = false;
  #ending: Ending | null = null;
  #onEnded: () => void = () => {};

  constructor(options: SessionCallsOptions) {
    this.#o = options;
  }

  /** Those that have not ended. */
  get size(): number {
    return this.#calls.size;
  }

  add(number: number, call: RemoteCall): void {
    this.#calls.set(number, call);
  }

  hear(messages: readonly CallMessage[]): void {
    if (messages.length === 0 || this.#ending !== null) return;
    this.#heard.push(messages);
    this.#waiting += messages.length;
    while (this.#waiting > MAX_WAITING) this.#doNext();
    this.#work();
  }

  /** No session any more: what is left of its calls fails. Called once. @returns when each of them has ended */
  end(errorOf: () => KvTransceiverError): Promise<void> {
    this.#ending = { errorOf, left: this.#calls.entries() };
    const ended = new Promise<void>((resolve) => {
      this.#onEnded = resolve;
    });
    this.#work();
    return ended;
  }

  #work(): void {
    if (this.#isAtWork) return;
    this.#isAtWork = true;
    const { worker, guard, turns } = this.#o;
    const work = inPortions(turns, () => this.#doNext());
    guard.after(`what ${worker} said`, work, () => {});
  }

  #doNext(): boolean {
    const message = this.#next();
    if (message !== null) {
      this.#apply(message);
      return true;
    }
    if (this.#ending !== null && this.#failOne(this.#ending)) return true;
    this.#isAtWork = false;
    return false;
  }

  #failOne({ errorOf, left }: Ending): boolean {
    const next = left.next();
    if (next.done === true) {
      this.#onEnded();
      return false;
    }
    const [number, call] = next.value;
    this.#calls.delete(number);
    call.fail(errorOf());
    return true;
  }

  #next(): CallMessage | null {
    const [frame] = this.#heard;
    if (frame === undefined) return null;
    const message = frame[this.#done++] as CallMessage;
    this.#waiting -= 1;
    if (this.#done === frame.length) {
      this.#heard.shift();
      this.#done = 0;
    }
    return message;
  }

  #apply(message: CallMessage): void {
    try {
      this.#tell(message);
    } catch (error) {
      this.#heard.length = 0;
      this.#done = 0;
      this.#waiting = 0;
      this.#o.onBroken(this.#o.guard.caught('its message was not understood', error));
    }
  }

  /** @throws ProtocolError for what does not follow what was said before */
  #tell(message: CallMessage): void {
    const call = this.#calls.get(message.call);
    switch (message.type) {
      case 'answer':
        call?.answered(message);
        break;
      case 'tokens':
        call?.arrived(message);
        break;
      case 'done':
        call?.ended(message);
        this.#calls.delete(message.call);
        break;
    }
  }
}
