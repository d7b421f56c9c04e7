import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { PATIENT, type PairSettings, ServerPair, ServerPrograms } from './faults/server-pair.js';
import type { ServerProcess } from './faults/server-process.js';

/** `KV_TRANSCEIVER_KILLS` changes how many processes are killed. */
const KILLS = Number(process.env['KV_TRANSCEIVER_KILLS'] ?? 200);
const REQUESTS_PER_ROUND = 4;
/** Pages of 1 KiB: a request is some fifty KiB, which at this rate takes some ten milliseconds. */
const SETTINGS: Partial<PairSettings> = {
  headDim: 64,
  pageCount: 700,
  linkGbps: 0.05,
  // What a killed server never asked for ends by this clock alone.
  limits: { ...PATIENT, transferQueueTimeoutMs: 8000 },
};
/** Starting a process takes longer than a round: these start meanwhile. */
const SPARES = 3;
const PROMPTS = [30, 61, 90, 128];
/** From what a round waits for to the kill. */
const LATEST_KILL_MS = 40;
/**
 * What a round waits for before its kill comes. A pair one of whose servers has just started takes 70 to 300 ms to greet, ask and transfer,
 * so that kills counted from the submission alone would hit next to nothing but greetings.
 */
const WAITS = ['submitted', 'submitted', 'first slice', 'one completed'] as const;

describe(`${KILLS} kills at random moments, host agent`, () => {
  const programs = new ServerPrograms();
  let pair: ServerPair | null = null;
  afterAll(() => programs.remove());
  afterEach(() => pair?.kill());

  it(
    'each request has one outcome on the side that lives, nothing is written to free pages, and the last pair is healthy',
    async () => {
      pair = await ServerPair.start(programs.entry, SETTINGS);
      const random = randomFrom(Number(process.env['KV_TRANSCEIVER_SEED'] ?? 1));
      const tally = { completed: 0, failed: 0, cancelled: 0 };
      const judged: Promise<void>[] = [];
      const spares = Array.from({ length: SPARES }, pair.spare.bind(pair));
      for (let kill = 0; kill < KILLS; kill++) {
        const victim = random() < 0.5 ? 'context' : 'generation';
        const survivor: ServerProcess = victim === 'context' ? pair.generation : pair.context;
        const rids = await submitRound(pair, random);
        const wait = WAITS[kill % WAITS.length];
        if (wait === 'first slice') await pair.context.chunk('sent', rids[0] as string, 0);
        if (wait === 'one completed') {
          const { context, generation } = await pair.outcomes(rids[0] as string);
          expect(context, JSON.stringify(context)).toMatchObject({ outcome: 'completed' });
          expect(generation, JSON.stringify(generation)).toMatchObject({ outcome: 'completed' });
        }
        await new Promise((resolve) => setTimeout(resolve, random() * LATEST_KILL_MS));
        await pair[victim].kill();
        // Judged while the next rounds run, unless the survivor is killed first.
        for (const rid of rids) judged.push(judge(survivor, rid, tally));
        spares.push(pair.spare());
        await pair.restart(victim, spares.shift());
      }
      await Promise.all(judged);
      for (let i = 0; i < 5; i++) await pair.healthyTransfer({ promptTokens: 90 });
      await Promise.all([pair.expectClean(pair.context), pair.expectClean(pair.generation)]);
      await pair.close();
      expect(tally.completed, JSON.stringify(tally)).toBeGreaterThanOrEqual(Math.floor(KILLS / WAITS.length));
      expect(tally.failed, JSON.stringify(tally)).toBeGreaterThan(0);
    },
    60_000 + KILLS * 3000,
  );
});

async function submitRound(pair: ServerPair, random: () => number): Promise<readonly string[]> {
  const prompts = Array.from({ length: REQUESTS_PER_ROUND }, () => PROMPTS[Math.floor(random() * PROMPTS.length)]);
  return Promise.all(prompts.map((promptTokens = 30) => pair.submit({ promptTokens, chunkTokens: 16 })));
}

/** The survivor's outcome: one, with the right bytes when it says so. A survivor that is killed meanwhile has nothing to say. */
async function judge(survivor: ServerProcess, rid: string, tally: Record<string, number>): Promise<void> {
  let outcome: Awaited<ReturnType<ServerProcess['outcome']>>;
  try {
    outcome = await survivor.outcome(rid);
  } catch (error) {
    if (survivor.child.signalCode === 'SIGKILL') return;
    throw error;
  }
  expect(outcome.wrongBytes, JSON.stringify(outcome)).toBe(0);
  expect(survivor.outcomesOf(rid)).toHaveLength(1);
  tally[outcome.outcome] = (tally[outcome.outcome] ?? 0) + 1;
}

/** The same numbers in [0, 1) for the same seed: which process, which prompt. The moment of a kill is as exact as timers are. */
function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
