import { requestKey } from '../../../src/executor/request.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import type { Journal } from '../core/journal.js';
import type { SettleNote } from '../parts/watched-transceiver.js';

interface Half {
  readonly server: string;
  readonly settled: Settled;
  readonly startedAtMs: number;
  readonly atMs: number;
}

/** How late one side may learn what the other knows while nothing is broken. */
const KNOWN_WITHIN_MS = 1000;

/** Role: compares what the two sides of each request were told. */
export class SettleBook {
  readonly #halves = new Map<bigint, Partial<Record<Settled['side'], Half>>>();
  readonly #journal: Journal;
  /** Requests whose pages were asked for: both sides know of each other. */
  readonly asked = new Set<bigint>();

  constructor(journal: Journal) {
    this.#journal = journal;
  }

  note({ server, settled, startedAtMs }: SettleNote, atMs: number): void {
    const rid = requestKey(settled.request);
    const entry = this.#halves.get(rid) ?? {};
    // The first of each side: a restarted process may see the request again.
    entry[settled.side] ??= { server, settled, startedAtMs, atMs };
    this.#halves.set(rid, entry);
    const { context, generation } = entry;
    if (context === undefined || generation?.settled.outcome !== 'completed') return;
    if (context.settled.outcome !== 'completed')
      this.#journal.violation(
        'I4 false done',
        `${rid.toString(16)}: complete at ${generation.server}, ${context.settled.outcome} at ${context.server}`,
      );
  }

  /** Only for runs whose network and processes had no fault. */
  checkPropagation(): void {
    for (const [rid, { context, generation }] of this.#halves) {
      if (context === undefined || generation === undefined || !this.asked.has(rid)) continue;
      if (context.settled.outcome === 'completed' || generation.settled.outcome === 'completed') continue;
      const [first, second] = context.atMs <= generation.atMs ? [context, generation] : [generation, context];
      const late = second.atMs - Math.max(first.atMs, second.startedAtMs);
      if (late > KNOWN_WITHIN_MS)
        this.#journal.violation(
          'I2 late',
          `${rid.toString(16)}: ${second.server} learnt ${Math.round(late)} ms after ${first.server}`,
        );
    }
  }
}
