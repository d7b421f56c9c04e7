import { spawnSync } from 'node:child_process';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { ServerPair, ServerPrograms } from './faults/server-pair.js';

/** Well below the three seconds after which a silent peer is lost. */
const SHORT_CUT_MS = 1500;
const NAMESPACE = `kvt-faults-${process.pid}`;

function ip(...words: readonly string[]): { readonly ok: boolean; readonly text: string } {
  const { status, stderr, error } = spawnSync('ip', words, { encoding: 'utf8' });
  return { ok: status === 0, text: error?.message ?? stderr.trim() };
}

/** Why there can be no namespace here, or null. */
function namespaceRefusal(): string | null {
  const made = ip('netns', 'add', NAMESPACE);
  if (!made.ok) return `ip netns add: ${made.text}`;
  const up = ip('-n', NAMESPACE, 'link', 'set', 'lo', 'up');
  ip('netns', 'delete', NAMESPACE);
  return up.ok ? null : `ip link set lo up: ${up.text}`;
}

const refusal = namespaceRefusal();
if (refusal !== null) {
  const why = `A NETWORK THAT IS CUT IS NOT TESTED: this needs network namespaces (root), and ${refusal}`;
  if ((process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('netns')) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
}

/**
 * Both servers in a network namespace of their own, whose loopback interface is all the network they have. Taken down, frames vanish and
 * connections neither break nor answer, as with a dead switch; the host agent goes on writing, for it needs no network.
 */
describe.skipIf(refusal !== null)(
  `a network that is cut${refusal === null ? '' : ` (SKIPPED: ${refusal})`}`,
  { timeout: 90_000 },
  () => {
    let programs: ServerPrograms;
    let pair: ServerPair | null = null;
    beforeAll(() => {
      programs = new ServerPrograms();
      ip('netns', 'add', NAMESPACE);
      ip('-n', NAMESPACE, 'link', 'set', 'lo', 'up');
    });
    afterAll(() => {
      programs.remove();
      ip('netns', 'delete', NAMESPACE);
    });
    afterEach(async () => {
      await pair?.kill();
      setNetwork('up');
    });

    function setNetwork(state: 'up' | 'down'): void {
      const set = ip('-n', NAMESPACE, 'link', 'set', 'lo', state);
      if (!set.ok) throw new Error(`lo ${state}: ${set.text}`);
    }

    it('both sides end what ran, once each; healed, the same processes go on, and pages come back with proof', async () => {
      pair = await ServerPair.start(programs.entry, {}, {}, ['ip', 'netns', 'exec', NAMESPACE]);
      const rids = await Promise.all([pair.submit({ holdBefore: 2 }), pair.submit({ holdBefore: 0 })]);
      await pair.context.chunk('held', rids[0] as string, 2);
      await pair.context.chunk('held', rids[1] as string, 0);

      setNetwork('down');
      for (const rid of rids) {
        const { context, generation } = await pair.outcomes(rid);
        for (const outcome of [context, generation])
          expect(outcome).toMatchObject({ outcome: 'failed', code: 'ERR_KVT_PEER_LOST' });
      }
      // The engine does not know yet: what it computes now must go nowhere.
      for (const rid of rids) await pair.context.call({ kind: 'continue', rid });

      setNetwork('up');
      await pair.healthyTransfer();
      await pair.expectClean(pair.context);
      const { counters } = await pair.expectClean(pair.generation);
      expect(counters['released_unproven'] ?? 0).toBe(0);
      await pair.close();
    });

    it('a cut that is shorter than the silence a peer is lost by harms nothing', async () => {
      pair = await ServerPair.start(programs.entry, {}, {}, ['ip', 'netns', 'exec', NAMESPACE]);
      let cutMs = Number.POSITIVE_INFINITY;
      let rid = '';
      // A machine that stands still meanwhile makes it longer than that: then once more.
      for (let tries = 0; tries < 5 && cutMs > SHORT_CUT_MS; tries++) {
        rid = await pair.submit({ holdBefore: 1 });
        await pair.context.chunk('held', rid, 1);
        const cutAtMs = performance.now();
        setNetwork('down');
        await pair.context.call({ kind: 'continue', rid });
        // All pages are written while no frame gets through.
        await pair.context.outcome(rid);
        setNetwork('up');
        cutMs = performance.now() - cutAtMs;
        await pair.outcomes(rid);
      }
      const { context, generation } = await pair.outcomes(rid);
      expect(context).toMatchObject({ outcome: 'completed' });
      expect(generation).toMatchObject({ outcome: 'completed', wrongBytes: 0 });
      await Promise.all([pair.expectClean(pair.context), pair.expectClean(pair.generation)]);
      await pair.close();
    });
  },
);
