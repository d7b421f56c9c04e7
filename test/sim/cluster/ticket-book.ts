import { requestKey } from '../../../src/executor/request.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import { WriterOutcome } from '../../../src/wire/messages.js';
import type { Journal } from '../core/journal.js';
import type { SettleNote } from '../parts/watched-transceiver.js';
import { rankCount, type Shape } from '../plan.js';

/** Where a WRITER_REPORT has what it says; `frame-header.ts` and `report-codec.ts` draw both. */
const INCARNATION_BYTES = 8;
const ID_BYTES = 16;
const TICKET_BYTES = 24;
const OUTCOME_BYTE = 32;
const DRAINED_BYTE = 33;
const SLICES_BYTES = 34;
const MOVED_BYTES = 38;
const REPORT_BYTES = 46;

const NAMES: Readonly<Record<number, string>> = Object.fromEntries(
  Object.entries(WriterOutcome).map(([name, number]) => [number, name]),
);

/** What one process says of one ticket. */
interface Word {
  /** Of the process that says it. */
  readonly incarnation: bigint;
  readonly rid: bigint;
  readonly ticket: bigint;
  readonly outcome: number;
  readonly slices: number;
  readonly bytes: bigint;
  drained: boolean;
  readonly way: 'note' | 'frame';
  /** The endpoint of the rank that says it. */
  readonly writer: string;
}

/** Which rank asked which, under which tickets. */
interface Asked {
  readonly asker: string;
  readonly writer: string;
  readonly tickets: Set<bigint>;
}

/** How a rank of the context side ended a request. */
interface Ended {
  readonly outcome: Settled['outcome'];
  readonly server: string;
  /** The receiving instance is one rank: the request ends as what that one was told. */
  readonly isOneReceiver: boolean;
}

/**
 * Role: one outcome per ticket. What a process says of a ticket, by a note or by a frame, first or repeated, is one word; and what each side decides
 *   is what was said.
 * Why: a receiver believes whichever of the two comes first. Where they differ, its outcome depends on the order in which they arrive, which a run
 *   shows only when it is the unlucky one.
 */
export class TicketBook {
  readonly #journal: Journal;
  /** By ticket: what each process said of it first. */
  readonly #words = new Map<bigint, Word[]>();
  readonly #byRid = new Map<bigint, Word[]>();
  readonly #asked = new Map<bigint, Map<string, Asked>>();
  /** By request, then by the endpoint of the rank. */
  readonly #ended = new Map<bigint, Map<string, Ended>>();

  constructor(journal: Journal) {
    this.#journal = journal;
  }

  /** A receiver asks. */
  asked(bytes: Uint8Array, asker: string, writer: string): void {
    const view = viewOf(bytes);
    const rid = view.getBigUint64(ID_BYTES, true);
    const pairs = this.#asked.get(rid) ?? new Map<string, Asked>();
    this.#asked.set(rid, pairs);
    const pair = pairs.get(`${asker}>${writer}`) ?? { asker, writer, tickets: new Set() };
    pairs.set(`${asker}>${writer}`, pair);
    pair.tickets.add(view.getBigUint64(TICKET_BYTES, true));
  }

  /** A rank has handed a WRITER_REPORT to its messenger, or its agent has sent one as a note. */
  said(bytes: Uint8Array, way: Word['way'], writer: string): void {
    if (bytes.length < REPORT_BYTES) return;
    const view = viewOf(bytes);
    const word: Word = {
      incarnation: view.getBigUint64(INCARNATION_BYTES, true),
      rid: view.getBigUint64(ID_BYTES, true),
      ticket: view.getBigUint64(TICKET_BYTES, true),
      outcome: view.getUint8(OUTCOME_BYTE),
      drained: view.getUint8(DRAINED_BYTE) === 1,
      slices: view.getUint32(SLICES_BYTES, true),
      bytes: view.getBigUint64(MOVED_BYTES, true),
      way,
      writer,
    };
    const ofTicket = this.#words.get(word.ticket);
    const first = ofTicket?.find(({ incarnation }) => incarnation === word.incarnation);
    if (first !== undefined) {
      // A process that has no memory of the request says of a cancel CANCELLED and of a question REFUSED, whichever comes: nothing moved.
      const isNothing = [first, word].every(
        ({ outcome, slices, drained }) =>
          slices === 0 && drained && (outcome === WriterOutcome.CANCELLED || outcome === WriterOutcome.REFUSED),
      );
      const isSame =
        isNothing ||
        (first.outcome === word.outcome &&
          (word.outcome !== WriterOutcome.DONE || (first.slices === word.slices && first.bytes === word.bytes)));
      if (!isSame) this.#violation('I4 two words', `${told(first)}, then ${told(word)}`);
      if (first.drained && !word.drained) this.#violation('I4 two words', `drained, then not: ${told(word)}`);
      first.drained ||= word.drained;
      return;
    }
    if (ofTicket === undefined) this.#words.set(word.ticket, [word]);
    else ofTicket.push(word);
    const words = this.#byRid.get(word.rid);
    if (words === undefined) this.#byRid.set(word.rid, [word]);
    else words.push(word);
    const ended = this.#ended.get(word.rid)?.get(writer);
    if (ended !== undefined) this.#compare(ended, word);
  }

  /** The first word on a request that says DONE. */
  doneOf(rid: bigint): { readonly slices: number; readonly bytes: bigint } | null {
    return this.#byRid.get(rid)?.find(({ outcome }) => outcome === WriterOutcome.DONE) ?? null;
  }

  settled({ settled, server, endpoint }: SettleNote, shape: Shape): void {
    const rid = requestKey(settled.request);
    const words = this.#byRid.get(rid) ?? [];
    if (settled.side === 'context') {
      const ended = { outcome: settled.outcome, server, isOneReceiver: rankCount(shape.generation) === 1 };
      const ofRequest = this.#ended.get(rid);
      if (ofRequest === undefined) this.#ended.set(rid, new Map([[endpoint, ended]]));
      else ofRequest.set(endpoint, ended);
      for (const word of words) if (word.writer === endpoint) this.#compare(ended, word);
    } else if (settled.outcome === 'completed') {
      const pairs = [...(this.#asked.get(rid)?.values() ?? [])].filter(({ asker }) => asker === endpoint);
      const done = new Set(words.filter(({ outcome }) => outcome === WriterOutcome.DONE).map(({ ticket }) => ticket));
      const missing = pairs.filter(({ tickets }) => ![...tickets].some((ticket) => done.has(ticket)));
      // Of several groups one has the request.
      const isTold = shape.context.dpSize === 1 ? missing.length === 0 : missing.length < pairs.length;
      if (pairs.length === 0 || isTold) return;
      const writers = missing.map(({ writer }) => writer).join(', ');
      this.#violation('I4 not told', `${rid.toString(16)}: complete at ${server}, and no DONE from ${writers}`);
    }
  }

  /** A rank that completed has told nobody anything else; one that did not has not told the only receiver that it did. */
  #compare({ outcome, server, isOneReceiver }: Ended, word: Word): void {
    const isDone = word.outcome === WriterOutcome.DONE;
    // Who is told that nothing moved was not one of its receivers.
    const isWrong = outcome === 'completed' ? !isDone && word.slices > 0 : isDone && isOneReceiver;
    if (isWrong) this.#violation('I4 told otherwise', `${told(word)}, ${outcome} at ${server}`);
  }

  #violation(rule: string, text: string): void {
    this.#journal.violation(rule, text);
  }
}

function told({ rid, ticket, outcome, slices, bytes, way }: Word): string {
  const what = NAMES[outcome] ?? String(outcome);
  return `${rid.toString(16)}: a ${way} says ${what} of ticket ${ticket.toString(16)} (${slices} slices, ${bytes} bytes)`;
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
