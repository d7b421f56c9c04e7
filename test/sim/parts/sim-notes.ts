import type { ArmedNote, NoteStats, SubmissionNotice } from '../../../src/agent/transfer-agent.js';
import { ArgumentError } from '../../../src/errors.js';
import type { Random } from '../core/random.js';

/** What becomes of a note that was sent: how many times it arrives, and when. */
export type NoteFate = readonly number[];

/** As a real lane takes them, `ArmedNote.bytes`. */
const MAX_NOTE_BYTES = 2048;

interface Armed {
  readonly carrier: number;
  readonly bytes: Uint8Array;
  readonly waitsFor: Set<number>;
  readonly target: string;
}

/** A few are lost, come twice, or so late that the request is long over; most are there before any frame could be. */
export function noteFate(random: Random): NoteFate {
  const soon = random.real(0.002, 0.08);
  const kind = random.next();
  if (kind < 0.15) return [];
  if (kind < 0.27) return [soon, random.real(0.01, 50)];
  if (kind < 0.42) return [random.real(0.1, 20)];
  if (kind < 0.5) return [random.real(20, 3000)];
  return [soon];
}

/**
 * Role: the notes of one simulated agent that wait for their transfers.
 * Ordering: what became of a note is reported before the completion that decided it.
 */
export class SimNotes {
  readonly #report: (notice: SubmissionNotice) => void;
  /** False: there was no way. */
  readonly #send: (target: string, bytes: Uint8Array) => boolean;
  readonly #armed = new Set<Armed>();
  readonly #counts = { sent: 0, unsent: 0, received: 0 };

  constructor(report: (notice: SubmissionNotice) => void, send: (target: string, bytes: Uint8Array) => boolean) {
    this.#report = report;
    this.#send = send;
  }

  /** Nothing is dropped or refused here: the lane has no room that could run out, and no stranger reaches it. */
  get stats(): NoteStats {
    return { ...this.#counts, dropped: 0, refused: 0 };
  }

  heard(): void {
    this.#counts.received += 1;
  }

  /** @throws ArgumentError for a note that no lane takes */
  check({ bytes: { length } }: ArmedNote): void {
    if (length < 1 || length > MAX_NOTE_BYTES)
      throw new ArgumentError(`a note has ${length} bytes; it must have 1 to ${MAX_NOTE_BYTES}`);
  }

  /** @param isOpen whether a submission may still end well */
  arm(carrier: number, target: string, note: ArmedNote, isOpen: (submission: number) => boolean): void {
    const armed = { carrier, target, bytes: note.bytes.slice(), waitsFor: new Set([carrier, ...note.also]) };
    this.#armed.add(armed);
    if (!note.also.every(isOpen)) this.#end(armed, false);
  }

  transferred(submission: number): void {
    for (const armed of this.#of(submission)) {
      armed.waitsFor.delete(submission);
      if (armed.waitsFor.size === 0) this.#end(armed, this.#send(armed.target, armed.bytes));
    }
  }

  drop(submission: number): void {
    for (const armed of this.#of(submission)) this.#end(armed, false);
  }

  #of(submission: number): readonly Armed[] {
    return [...this.#armed].filter(({ waitsFor }) => waitsFor.has(submission));
  }

  #end(armed: Armed, isSent: boolean): void {
    this.#armed.delete(armed);
    this.#counts[isSent ? 'sent' : 'unsent'] += 1;
    this.#report({ kind: 'note', submission: armed.carrier, isSent });
  }
}
