import { afterAll, afterEach, describe, expect, it } from 'vitest';
import type { NoteMoment, Role } from './faults/server-messages.js';
import { ServerPair, ServerPrograms } from './faults/server-pair.js';

/** A page of 32 KiB in each of three layers at this rate: what a note waits for takes some ten milliseconds. */
const SETTINGS = { headDim: 2048, pageCount: 160, linkGbps: 0.4 };
const LONG = { promptTokens: 250, chunkTokens: 64 };

interface Case {
  readonly what: string;
  /** Where the moment comes. */
  readonly at: Role;
  readonly moment: NoteMoment;
  readonly killed: Role;
  /** What the side that lives may have been told. */
  readonly outcomes: readonly ('completed' | 'failed')[];
}

const CASES: readonly Case[] = [
  {
    what: 'the writer killed when its note is announced and not said: the receiver hears that it is gone',
    at: 'context',
    moment: 'armed',
    killed: 'context',
    outcomes: ['failed'],
  },
  {
    what: 'the writer killed when its note is said, before the frame: the receiver has the note or the loss, whichever came first',
    at: 'context',
    moment: 'said',
    killed: 'context',
    outcomes: ['completed', 'failed'],
  },
  {
    what: 'the receiver killed when a note for it is announced and not said: the writer hears that it is gone, or has written all by then',
    at: 'context',
    moment: 'armed',
    killed: 'generation',
    outcomes: ['failed', 'completed'],
  },
  {
    what: 'the receiver killed when its note is said, before the frame: who said DONE has completed',
    at: 'context',
    moment: 'said',
    killed: 'generation',
    outcomes: ['completed'],
  },
  {
    what: 'the receiver killed with the note in its hands: who said DONE has completed',
    at: 'generation',
    moment: 'heard',
    killed: 'generation',
    outcomes: ['completed'],
  },
  {
    what: 'the receiver killed when it has completed by its note, before the frame: both have completed',
    at: 'generation',
    moment: 'taken',
    killed: 'generation',
    outcomes: ['completed'],
  },
];

describe('kill -9 beside a note, two host servers', () => {
  const programs = new ServerPrograms();
  let pair: ServerPair | null = null;
  afterAll(() => programs.remove());
  afterEach(() => pair?.kill());

  it.each(CASES)('$what', async ({ at, moment, killed, outcomes }) => {
    pair = await ServerPair.start(programs.entry, SETTINGS);
    const survivor = killed === 'context' ? pair.generation : pair.context;
    const victim = pair[killed];
    // From the first transfer on each side hears the notes of the other.
    await pair.healthyTransfer();
    await pair[at].call({ kind: 'killAt', moment, pid: victim.pid });
    const rid = await pair.submit(LONG);
    const outcome = await survivor.outcome(rid);
    expect(await victim.exited).toBe('SIGKILL');

    expect(outcomes, JSON.stringify(outcome)).toContain(outcome.outcome);
    expect(outcome.wrongBytes).toBe(0);
    if (outcome.outcome === 'failed') expect(['ERR_KVT_PEER_LOST', 'ERR_KVT_TRANSPORT']).toContain(outcome.code);
    else if (killed === 'context') expect(outcome.bytesChecked).toBeGreaterThan(0);
    // What the one that died may have said before is no other outcome.
    for (const told of victim.outcomesOf(rid)) expect(told).toMatchObject({ outcome: 'completed', wrongBytes: 0 });

    await pair.restart(killed);
    const { counters, warnings } = await pair.expectClean(survivor);
    expect(survivor.outcomesOf(rid)).toHaveLength(1);
    expect(counters['released_unproven']).toBeUndefined();
    expect(warnings.filter((text) => text.includes('released without proof'))).toEqual([]);
    await pair.healthyTransfer(LONG);
    await Promise.all([pair.expectClean(pair.context), pair.expectClean(pair.generation)]);
    await pair.close();
  });
});
