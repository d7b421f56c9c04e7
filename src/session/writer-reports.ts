import type { Clock } from '../clock.js';
import { type KvTransceiverError, ResourceError } from '../errors.js';
import type { WriterOutcomeName, WriterReport } from '../wire/messages.js';
import { AnswerRoom } from './answer-room.js';
import { clipText } from './clip-text.js';
import type { ControlChannel, Correspondent } from './control-channel.js';
import type { Counters } from './counters.js';
import { Repeater } from './repeater.js';
import { SharedBoundedMap } from './shared-bounded-map.js';

/** Reports kept for late questions. Who asks much pushes out its own, not what others may ask for. */
const REMEMBERED_REPORTS = 65536;

interface OpenReport {
  readonly endpoint: string;
  readonly report: WriterReport;
  readonly expiresAtMs: number;
  /** It answers an early question, and has its place in the room for those. */
  readonly isAnswer: boolean;
}

/**
 * Role: every WRITER_REPORT of this rank: sent, repeated until acknowledged, remembered for whoever asks again.
 * Invariant: the newest report of a ticket is the answer to every later question about it, so that the same question gets the
 *   same answer.
 */
export class WriterReports {
  readonly #channel: ControlChannel;
  readonly #clock: Clock;
  readonly #counters: Counters;
  readonly #repeatForMs: number;
  readonly #repeater: Repeater<bigint>;
  readonly #known = new SharedBoundedMap<bigint, WriterReport>(REMEMBERED_REPORTS);
  readonly #open = new Map<bigint, OpenReport>();
  readonly #answers = new AnswerRoom();

  constructor(options: {
    readonly channel: ControlChannel;
    readonly clock: Clock;
    readonly counters: Counters;
    readonly repeatForMs: number;
  }) {
    this.#channel = options.channel;
    this.#clock = options.clock;
    this.#counters = options.counters;
    this.#repeatForMs = options.repeatForMs;
    this.#repeater = new Repeater(options.clock);
  }

  get openCount(): number {
    return this.#open.size;
  }

  /** @param to whose reports count */
  hasOpen(to: (endpoint: string) => boolean): boolean {
    for (const { endpoint } of this.#open.values()) if (to(endpoint)) return true;
    return false;
  }

  newest(ticket: bigint): WriterReport | undefined {
    return this.#known.get(ticket);
  }

  /** Sends until acknowledged, bounded by the transfer timeout. */
  publish(endpoint: string, report: WriterReport): void {
    this.#known.set(report.ticket, report, endpoint);
    this.#repeat(endpoint, report, false);
  }

  /**
   * The same, for a question that was accepted before its request came, as long as there is room: this peer decides how many there are, not we.
   * Beyond it the answer is sent once, and remembered for whoever asks how it goes.
   */
  publishAnswer(endpoint: string, report: WriterReport): void {
    this.#known.set(report.ticket, report, endpoint);
    this.#stop(report.ticket);
    const room = this.#answers.take(endpoint);
    if (room === 'taken') this.#repeat(endpoint, report, true);
    else {
      this.#counters.add(`early_answers_${room}`);
      this.#channel.send(endpoint, report);
    }
  }

  /** For a peer that is gone: nobody to send it to, but should it ask again, this is the answer. */
  record(endpoint: string, report: WriterReport): void {
    this.#known.set(report.ticket, report, endpoint);
    this.#stop(report.ticket);
  }

  /** Sends once: the asker repeats its question when this is lost. Not to one who was told ACCEPTED, and repeats nothing. */
  answer(to: Correspondent, report: WriterReport): void {
    this.#known.set(report.ticket, report, ownerOf(to));
    this.#channel.tell(to, report);
  }

  /** Sends the newest report of a ticket again. False when there is none. */
  repeat(to: Correspondent, ticket: bigint): boolean {
    const report = this.#known.get(ticket);
    if (report === undefined) return false;
    this.#channel.tell(to, report);
    return true;
  }

  /** @param endpoint of the peer that acknowledges; another's word does not count */
  acknowledged(endpoint: string, ticket: bigint, drained: boolean): void {
    if (this.#open.get(ticket)?.endpoint !== endpoint) return;
    // An ack of the undrained report does not answer the drained one.
    if (this.#open.get(ticket)?.report.drained !== drained) return;
    this.#stop(ticket);
  }

  sweep(): void {
    if (this.#open.size === 0) return;
    const now = this.#clock.now();
    for (const [ticket, { expiresAtMs }] of this.#open) {
      if (now < expiresAtMs) continue;
      this.#counters.add('reports_unacknowledged');
      this.#stop(ticket);
    }
  }

  close(): void {
    this.#repeater.stopAll();
    this.#open.clear();
    this.#answers.clear();
  }

  #repeat(endpoint: string, report: WriterReport, isAnswer: boolean): void {
    const { ticket } = report;
    // One report a ticket is repeated, the newest.
    this.#forget(ticket);
    this.#open.set(ticket, { endpoint, report, expiresAtMs: this.#clock.now() + this.#repeatForMs, isAnswer });
    this.#repeater.start(ticket, () => this.#channel.send(endpoint, report));
  }

  #stop(ticket: bigint): void {
    this.#forget(ticket);
    this.#repeater.stop(ticket);
  }

  #forget(ticket: bigint): void {
    const open = this.#open.get(ticket);
    if (open === undefined) return;
    this.#open.delete(ticket);
    if (open.isAnswer) this.#answers.giveBack(open.endpoint);
  }
}

/** A report about a ticket that moved nothing, or that ended before it could. */
export function emptyReport(
  rid: bigint,
  ticket: bigint,
  outcome: WriterOutcomeName,
  error: KvTransceiverError,
): WriterReport {
  return {
    type: 'WRITER_REPORT',
    rid,
    ticket,
    outcome,
    slices: 0,
    bytes: 0n,
    drained: true,
    errorCode: error.code,
    message: clipText(error.message),
  };
}

/**
 * There are so many questions about requests that are not here yet that this one was not kept: not now. Its receiver goes on asking until its own
 * clock ends that. It promises nothing, `drained` neither: an earlier copy of the question may be here.
 */
export function noRoomReport(rid: bigint, ticket: bigint): WriterReport {
  const text = `request ${rid} is not here yet, and there is no room for more questions about such; it is kept when it is asked again and there is`;
  return { ...emptyReport(rid, ticket, 'REFUSED', new ResourceError(text)), drained: false };
}

/** The one report that is no outcome. */
export function isNoRoom({ outcome, errorCode, drained }: WriterReport): boolean {
  return outcome === 'REFUSED' && errorCode === 'ERR_KVT_RESOURCE' && !drained;
}

/** Strangers share one: they make connections as they like. */
function ownerOf(to: Correspondent): string {
  return 'kind' in to ? '' : to.endpoint;
}
