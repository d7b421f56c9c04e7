import type { Clock } from '../clock.js';
import type { KvTransceiverError } from '../errors.js';
import { clipText } from './clip-text.js';
import type { ControlChannel } from './control-channel.js';
import { Repeater } from './repeater.js';
import { LOOK_EARLY_MS } from './request-clocks.js';
import type { RxSession } from './rx-session.js';
import type { RxWriter } from './rx-writer.js';

/** At most this often a silent writer is asked how it goes. */
const MIN_STATUS_INTERVAL_MS = 250;

/**
 * Role: what a receiver says to its writers, each thing repeated until it was answered.
 * Ordering: a repeat belongs to a ticket; stopping one never stops that of the next attempt.
 */
export class WriterTalk {
  readonly #channel: ControlChannel;
  readonly #clock: Clock;
  readonly #queueTimeoutMs: number;
  readonly #statusIntervalMs: number;
  /** By ticket. */
  readonly #questions: Repeater<bigint>;
  readonly #cancels: Repeater<bigint>;
  readonly #onUnsendable: (session: RxSession, writer: RxWriter, error: KvTransceiverError) => void;

  constructor(options: {
    readonly channel: ControlChannel;
    readonly clock: Clock;
    readonly limits: { readonly transferQueueTimeoutMs: number; readonly noProgressTimeoutMs: number };
    /** No frame can carry this question. It is not repeated. */
    readonly onUnsendable: (session: RxSession, writer: RxWriter, error: KvTransceiverError) => void;
  }) {
    this.#channel = options.channel;
    this.#clock = options.clock;
    this.#queueTimeoutMs = options.limits.transferQueueTimeoutMs;
    // Often enough that a lost one or two do not look like a writer that is gone.
    this.#statusIntervalMs = Math.max(MIN_STATUS_INTERVAL_MS, options.limits.noProgressTimeoutMs / 4);
    this.#questions = new Repeater(options.clock);
    this.#cancels = new Repeater(options.clock);
    this.#onUnsendable = options.onUnsendable;
  }

  /** Until it accepted, refused or reported. */
  ask(session: RxSession, writer: RxWriter): void {
    const deadlineMs = session.startedAtMs + this.#queueTimeoutMs;
    const { ticket } = writer;
    const computed = session.isComputed ? ({ isComputed: true } as const) : {};
    this.#questions.start(ticket, () => {
      const error = this.#channel.send(writer.endpoint, {
        type: 'REQUEST_DATA',
        rid: session.rid,
        ticket,
        timeLeftMs: Math.max(1, Math.ceil(deadlineMs - this.#clock.now())),
        promptLen: session.request.promptTokens.length,
        cachedTokens: session.request.prepopulatedLen,
        auxSlot: writer.sendsAux ? session.auxSlot : -1,
        endpoint: this.#channel.endpoint,
        traceparent: session.traceparent,
        runs: session.runs,
        ...computed,
      });
      if (error === null) return;
      this.stopAsking(writer);
      this.#onUnsendable(session, writer, error);
    });
  }

  stopAsking(writer: RxWriter): void {
    this.#questions.stop(writer.ticket);
  }

  /** Until its drained report comes: that is the answer to a cancel. */
  cancel(session: RxSession, writer: RxWriter, reason: string): void {
    const { ticket } = writer;
    this.#cancels.start(ticket, () =>
      this.#channel.send(writer.endpoint, {
        type: 'CANCEL',
        rid: session.rid,
        ticket,
        from: 'generation',
        endpoint: this.#channel.endpoint,
        reason: clipText(reason),
      }),
    );
  }

  stopCancelling(writer: RxWriter): void {
    this.#cancels.stop(writer.ticket);
  }

  /**
   * Asks the writers for a word that took the request and have been silent for a while; their outcome ends that.
   * @returns when at the earliest one of them is to be asked again
   */
  askSilent(session: RxSession, now: number, ways: { isReachable(writer: RxWriter): boolean }): number {
    let againAtMs = this.#dueAfter(now);
    for (const writer of session.writers) {
      if (!session.wants(writer) || !isOwing(writer)) continue;
      const isSilent = now - lastWordMs(writer) >= this.#statusIntervalMs;
      if (isSilent && ways.isReachable(writer)) this.#askForStatus(session, writer, now);
      againAtMs = Math.min(againAtMs, this.#dueAfter(lastWordMs(writer)));
    }
    return againAtMs;
  }

  #askForStatus(session: RxSession, writer: RxWriter, now: number): void {
    writer.statusAtMs = now;
    const { endpoint } = this.#channel;
    this.#channel.send(writer.endpoint, { type: 'STATUS', rid: session.rid, ticket: writer.ticket, endpoint });
  }

  /** One that comes to owe a word later has a whole interval from then on. */
  #dueAfter(wordMs: number): number {
    return wordMs + this.#statusIntervalMs - LOOK_EARLY_MS;
  }

  stop(writer: RxWriter): void {
    this.stopAsking(writer);
    this.stopCancelling(writer);
  }

  close(): void {
    this.#questions.stopAll();
    this.#cancels.stopAll();
  }
}

/** It took the question and has not said how it ended. */
function isOwing({ accepted, outcome }: RxWriter): boolean {
  return accepted && outcome === null;
}

function lastWordMs({ heardAtMs, statusAtMs }: RxWriter): number {
  return Math.max(heardAtMs, statusAtMs);
}
