import { requestKey } from '../../../src/executor/request.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import type { Journal } from '../core/journal.js';
import type { SettleNote } from '../parts/watched-transceiver.js';

interface Half {
  readonly server: string;
  readonly settled: Settled;
  readonly startedAtMs: number;
  readonly atMs: number;
  readonly promptOutAtMs: number | null;
}

/** How late one side may learn what the other knows while nothing is broken. */
const KNOWN_WITHIN_MS = 1000;

/** Role: compares what the two sides of each request were told. */
export class SettleBook {
  readonly #halves = new Map<bigint, Partial<Record<Settled['side'], Half>>>();
  readonly #journal: Journal;
  /**
   * Requests whose pages were asked for, and when first: from then on both sides know of each other. A receiver that waits for an aux
   * slot has asked nobody yet.
   */
  readonly asked = new Map<bigint, number>();
  /** Requests whose writer took the question. */
  readonly accepted = new Set<bigint>();

  constructor(journal: Journal) {
    this.#journal = journal;
  }

  note({ server, settled, startedAtMs, promptOutAtMs }: SettleNote, atMs: number): void {
    const rid = requestKey(settled.request);
    const entry = this.#halves.get(rid) ?? {};
    // The first of each side: a restarted process may see the request again.
    entry[settled.side] ??= { server, settled, startedAtMs, atMs, promptOutAtMs };
    this.#halves.set(rid, entry);
    const { context, generation } = entry;
    if (context === undefined || generation?.settled.outcome !== 'completed') return;
    if (context.settled.outcome !== 'completed')
      this.#journal.violation(
        'I4 false done',
        `${rid.toString(16)}: complete at ${generation.server}, ${context.settled.outcome} at ${context.server}`,
      );
  }

  /** The context side had handed over the whole prompt well before the generation side gave up. */
  promptIsOut(rid: bigint | null): boolean {
    if (rid === null) return false;
    const { context, generation } = this.#halves.get(rid) ?? {};
    const outAtMs = context?.promptOutAtMs ?? null;
    return outAtMs !== null && (generation?.atMs ?? 0) - outAtMs > KNOWN_WITHIN_MS;
  }

  /** Only for runs whose network and processes had no fault. */
  checkPropagation(): void {
    for (const [rid, { context, generation }] of this.#halves) {
      const askedAtMs = this.asked.get(rid);
      if (context === undefined || generation === undefined || askedAtMs === undefined) continue;
      if (context.settled.outcome === 'completed' || generation.settled.outcome === 'completed') continue;
      const [first, second] = context.atMs <= generation.atMs ? [context, generation] : [generation, context];
      const late = second.atMs - Math.max(first.atMs, second.startedAtMs, askedAtMs);
      if (late > KNOWN_WITHIN_MS)
        this.#journal.violation(
          'I2 late',
          `${rid.toString(16)}: ${second.server} learnt ${Math.round(late)} ms after ${first.server}`,
        );
    }
  }
}
