import { afterAll, afterEach, describe, expect, it } from 'vitest';
import type { OutcomeNews } from './server-messages.js';
import { PATIENT, type PairSettings, ServerPair, ServerPrograms } from './server-pair.js';

/** A page of 32 KiB in each of three layers: one prompt is a few MiB, so that a fault hits it while it moves. */
const LARGE = { headDim: 2048, pageCount: 160 };
const LONG = { promptTokens: 250, chunkTokens: 64 };
/** Longer than the three seconds after which a silent peer is lost, shorter than that and what pages without proof are held for. */
const STOPPED_MS = 4500;
/** Long enough for a request beside it to be asked for, on a busy machine too. */
const QUEUE_MS = 8000;

/** What must end well between two processes, whatever moves the bytes. */
export function faultSuite(agent: 'host' | 'nixl', env: Readonly<Record<string, string>> = {}, note = ''): void {
  describe(`faults of two ${agent} servers${note}`, () => {
    const programs = new ServerPrograms();
    const pairs: ServerPair[] = [];
    afterAll(() => programs.remove());
    afterEach(async () => {
      await Promise.all(pairs.splice(0).map((pair) => pair.kill()));
    });

    async function start(settings: Partial<PairSettings> = {}): Promise<ServerPair> {
      const pair = await ServerPair.start(programs.entry, { agent, ...settings }, env);
      pairs.push(pair);
      return pair;
    }

    /** After a restart: new requests work, and nothing of the old ones is left. */
    async function expectHealthy(pair: ServerPair): Promise<void> {
      await pair.healthyTransfer();
      await pair.healthyTransfer(LONG);
      await Promise.all([pair.expectClean(pair.context), pair.expectClean(pair.generation)]);
      await pair.close();
    }

    it('the writer killed before its first write: the receiver hears it, its pages come back, a successor serves', async () => {
      const pair = await start();
      const rid = await pair.submit({ ...LONG, promptTokens: 60, holdBefore: 0 });
      await pair.context.chunk('held', rid, 0);
      await pair.context.kill();
      expectLost(await pair.generation.outcome(rid));
      await pair.restart('context');
      await expectHealthy(pair);
    });

    it('the writer killed while its writes run: nothing lands in pages that were given back', async () => {
      const pair = await start({ ...LARGE, linkGbps: agent === 'host' ? 0.4 : null });
      // Neither can be whole before the kill, however late that comes.
      const rids = await Promise.all([2, 3].map((holdBefore) => pair.submit({ ...LONG, holdBefore })));
      await Promise.all(rids.map((rid) => pair.context.chunk('sent', rid, 1)));
      await pair.context.kill();
      for (const rid of rids) expectLost(await pair.generation.outcome(rid));
      await pair.restart('context');
      // The dead writer cannot say that it stopped; that its process has ended proves it.
      const { counters, warnings } = await pair.expectClean(pair.generation);
      expect(counters['released_unproven']).toBeUndefined();
      expect(warnings.filter((text) => text.includes('released without proof'))).toEqual([]);
      await expectHealthy(pair);
    });

    it('the writer killed after its writes: what was reported stays completed, with the right bytes', async () => {
      const pair = await start();
      const rid = await pair.submit(LONG);
      await pair.context.outcome(rid);
      await pair.context.kill();
      const outcome = await pair.generation.outcome(rid);
      // The report may have died with the writer.
      if (outcome.outcome === 'completed') expect(outcome.wrongBytes).toBe(0);
      else expectLost(outcome);
      await pair.restart('context');
      await expectHealthy(pair);
    });

    it('the receiver killed while it is written to: the writer hears it and lets its pages go', async () => {
      const pair = await start({ ...LARGE, linkGbps: agent === 'host' ? 0.4 : null });
      const rids = await Promise.all([2, 3].map((holdBefore) => pair.submit({ ...LONG, holdBefore })));
      await Promise.all(rids.map((rid) => pair.context.chunk('sent', rid, 1)));
      await pair.generation.kill();
      for (const rid of rids) expectFailed(await pair.context.outcome(rid));
      await pair.restart('generation');
      await expectHealthy(pair);
    });

    it('a request that a killed receiver never asked for ends by its clock, and others go on meanwhile', async () => {
      const pair = await start({ limits: { ...PATIENT, transferQueueTimeoutMs: QUEUE_MS } });
      const rid = pair.newRid();
      await pair.context.call({ kind: 'prefill', rid, promptTokens: 30, chunkTokens: 8, holdBefore: null });
      await pair.generation.kill();
      await pair.restart('generation');
      await pair.healthyTransfer();
      expect(await pair.context.outcome(rid)).toMatchObject({
        outcome: 'failed',
        code: 'ERR_KVT_TRANSFER_TIMEOUT',
      });
      await expectHealthy(pair);
    });

    it('either side stopped for longer than its peer waits, then continued: one outcome each, pages released with proof', async () => {
      await Promise.all(
        (['context', 'generation'] as const).map(async (side) => {
          const pair = await start();
          const other = side === 'context' ? 'generation' : 'context';
          const rids = await Promise.all([pair.submit({ holdBefore: 2 }), pair.submit({ holdBefore: 0 })]);
          await pair.context.chunk('held', rids[0] as string, 2);
          await pair.context.chunk('held', rids[1] as string, 0);
          pair[side].signal('SIGSTOP');
          const stoppedAtMs = performance.now();
          for (const rid of rids) expectLost(await pair[other].outcome(rid));
          await new Promise((resolve) => setTimeout(resolve, stoppedAtMs + STOPPED_MS - performance.now()));
          pair[side].signal('SIGCONT');
          // It goes on where it was, with no idea that it was missed: what it sends now must find pages that are still held.
          await pair.context.call({ kind: 'continue', rid: rids[0] as string });
          const [going, held] = await Promise.all(rids.map((rid) => pair.outcomes(rid)));
          expect(going?.generation).toMatchObject({ outcome: 'failed' });
          expect(held?.generation).toMatchObject({ outcome: 'failed' });
          // A stopped writer may have written everything before it hears that nobody waits for it.
          if (side === 'generation') expectLost(going?.context);
          expect(['failed', 'cancelled']).toContain(held?.context.outcome);
          await pair.healthyTransfer();
          const { counters } = await pair.expectClean(pair.generation);
          expect(counters['released_unproven'] ?? 0).toBe(0);
          await expectHealthy(pair);
        }),
      );
    });
  });
}

function expectFailed(outcome: OutcomeNews | undefined): void {
  expect(outcome).toMatchObject({ outcome: 'failed' });
  expect(['ERR_KVT_PEER_LOST', 'ERR_KVT_TRANSPORT']).toContain(outcome?.code);
}

function expectLost(outcome: OutcomeNews | undefined): void {
  expect(outcome).toMatchObject({ outcome: 'failed', code: 'ERR_KVT_PEER_LOST' });
}
