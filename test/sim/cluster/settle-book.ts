import { requestKey } from '../../../src/executor/request.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import { REPEAT_FIRST_MS, REPEAT_MAX_MS } from '../../../src/session/repeater.js';
import type { Journal } from '../core/journal.js';
import type { SettleNote } from '../parts/watched-transceiver.js';

/** How one rank saw one request end. */
interface Half extends SettleNote {
  readonly atMs: number;
}

/** The first note of each rank of each side: a restarted process may see the request again. */
type Halves = Record<Settled['side'], Map<number, Half>>;

interface Asked {
  readonly pairs: Set<string>;
  /** Of processes that asked, by name, and the endpoints that they asked: another process may answer at the endpoint of one by now. */
  readonly askers: Set<string>;
  /** When the last pair of ranks got to know of each other. */
  atMs: number;
}

/** How late one side may learn what the other knows while nothing is broken. */
export const KNOWN_WITHIN_MS = 1000;

/** Role: compares what the ranks of the two sides of each request were told. */
export class SettleBook {
  readonly #halves = new Map<bigint, Halves>();
  readonly #journal: Journal;
  /**
   * Requests whose pages were asked for: from then on both sides know of each other. A receiver that waits for an aux slot has asked nobody
   * yet.
   */
  readonly asked = new Map<bigint, Asked>();
  /** The last question about each request, for a writer that lies. */
  readonly questions = new Map<bigint, Uint8Array>();
  /** Requests whose writer took the question. */
  readonly accepted = new Set<bigint>();
  /** Reports of DONE by ticket: which writer has nothing left to do for which receiver. */
  readonly #reports = new Map<bigint, { readonly rid: bigint; readonly pair: string }>();
  readonly #sent = new Map<bigint, Set<string>>();
  readonly #taken = new Map<bigint, Set<string>>();

  constructor(journal: Journal) {
    this.#journal = journal;
  }

  /** @param asker the process at `from` */
  noteAsked(rid: bigint, asker: string, from: string, to: string, atMs: number): void {
    const pair = `${from}>${to}`;
    const asked = this.asked.get(rid) ?? { pairs: new Set(), askers: new Set(), atMs };
    this.asked.set(rid, asked);
    asked.askers.add(`${asker}>${to}`);
    if (asked.pairs.has(pair)) return;
    asked.pairs.add(pair);
    asked.atMs = atMs;
  }

  /** This process has asked that rank for its part of the request. What the one before it asked died with it. */
  hasAsked(rid: bigint, asker: string, writer: string): boolean {
    return this.asked.get(rid)?.askers.has(`${asker}>${writer}`) === true;
  }

  /** A writer says that it has done its part. */
  noteDone(ticket: bigint, rid: bigint, writer: string, receiver: string): void {
    const pair = `${writer}>${receiver}`;
    this.#reports.set(ticket, { rid, pair });
    const pairs = this.#sent.get(rid) ?? new Set();
    this.#sent.set(rid, pairs.add(pair));
  }

  /** The receiver has read a report with this ticket. */
  noteTaken(ticket: bigint): void {
    const report = this.#reports.get(ticket);
    if (report === undefined) return;
    const pairs = this.#taken.get(report.rid) ?? new Set();
    this.#taken.set(report.rid, pairs.add(report.pair));
  }

  /** This writer has done its part for this receiver, whether or not that one heard. */
  hasSentAll(rid: bigint, writer: string, receiver: string): boolean {
    return this.#sent.get(rid)?.has(`${writer}>${receiver}`) === true;
  }

  /** This receiver has everything of this writer, and the writer's word for it: it waits for others, if it waits. */
  hasAllOf(rid: bigint, writer: string, receiver: string): boolean {
    return this.#taken.get(rid)?.has(`${writer}>${receiver}`) === true;
  }

  note(note: SettleNote, atMs: number): void {
    const { settled, rank } = note;
    const rid = requestKey(settled.request);
    let halves = this.#halves.get(rid);
    if (halves === undefined) {
      halves = { context: new Map(), generation: new Map() };
      this.#halves.set(rid, halves);
    }
    if (!halves[settled.side].has(rank)) halves[settled.side].set(rank, { ...note, atMs });
    this.#checkDone(rid, halves);
  }

  /** Every rank of the one side has all it waited for: then nobody of the other may say that it failed. */
  #checkDone(rid: bigint, { context, generation }: Halves): void {
    const [receiver] = generation.values();
    if (receiver === undefined || generation.size < receiver.ranks) return;
    for (const { settled } of generation.values()) if (settled.outcome !== 'completed') return;
    for (const { server, settled } of context.values())
      if (settled.outcome !== 'completed')
        this.#journal.violation(
          'I4 false done',
          `${rid.toString(16)}: complete at ${receiver.server}, ${settled.outcome} at ${server}`,
        );
  }

  /** The context side had handed over the whole prompt well before the generation side gave up. */
  promptIsOut(rid: bigint | null): boolean {
    const halves = rid === null ? undefined : this.#halves.get(rid);
    if (halves === undefined || halves.context.size === 0) return false;
    const outAtMs = Math.max(...[...halves.context.values()].map((half) => half.promptOutAtMs ?? Infinity));
    const gaveUpAtMs = Math.min(...[...halves.generation.values()].map((half) => half.atMs));
    return Number.isFinite(gaveUpAtMs) && gaveUpAtMs - outAtMs > KNOWN_WITHIN_MS;
  }

  /**
   * Only for runs whose processes had no fault, and whose network none but that it lost frames.
   * @param lostFrames how many: what they said is repeated
   */
  checkPropagation(lostFrames: number): void {
    const boundMs = KNOWN_WITHIN_MS + repeatsMs(lostFrames);
    for (const [rid, { context, generation }] of this.#halves) {
      const askedAtMs = this.asked.get(rid)?.atMs;
      const failed = [...context.values(), ...generation.values()]
        .filter(({ settled }) => settled.outcome !== 'completed')
        .sort((a, b) => a.atMs - b.atMs);
      const first = failed[0];
      const last = failed.findLast((half) => this.#canBeTold(rid, half));
      if (first === undefined || last === undefined || askedAtMs === undefined) continue;
      const late = last.atMs - Math.max(first.atMs, last.startedAtMs, askedAtMs);
      if (late > boundMs)
        this.#journal.violation(
          'I2 late',
          `${rid.toString(16)}: ${last.server} learnt ${Math.round(late)} ms after ${first.server}`,
        );
    }
  }

  /** A rank that waited for an aux slot to the end asked nobody, whatever its siblings did: no writer knows that it has to hear of an end. */
  #canBeTold(rid: bigint, { settled, endpoint }: Half): boolean {
    if (settled.side === 'context') return true;
    return [...(this.asked.get(rid)?.pairs ?? [])].some((pair) => pair.startsWith(`${endpoint}>`));
  }
}

/** How long something waits for its repeat at most when so many frames get lost: later repeats are further apart, so that one exchange has lost all. */
function repeatsMs(lostFrames: number): number {
  let sumMs = 0;
  for (let lost = 0, delayMs = REPEAT_FIRST_MS; lost < lostFrames; lost++) {
    sumMs += delayMs;
    delayMs = Math.min(delayMs * 2, REPEAT_MAX_MS);
  }
  return sumMs;
}
