import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { TurnTimer } from '../../../src/cli/bench/sessions/turn-timer.js';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as (options: { readonly type: 'minor' }) => void;

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Until the process had so much of a core, with next to nothing allocated that would have to be collected. */
function work(cpuMs: number): void {
  const before = process.cpuUsage();
  while (process.cpuUsage(before).user < cpuMs * 1000) for (let spin = 0; spin < 100_000; ) spin++;
}

/** What is done in one turn of the event loop. */
async function timed(action: () => void): Promise<ReturnType<TurnTimer['stop']>> {
  collect({ type: 'minor' });
  const timer = new TurnTimer();
  await turn();
  await turn();
  action();
  await turn();
  await turn();
  return timer.stop();
}

describe('TurnTimer', () => {
  it('tells the longest turn that no collection lay in', async () => {
    let times = await timed(() => work(60));
    // Collections come when they like: of some tries one is without.
    for (let tries = 1; tries < 20 && times.garbageCollection.count > 0; tries++) times = await timed(() => work(60));
    const { wallMs, longestOwnMs, garbageCollection } = times;
    expect(garbageCollection.count).toBe(0);
    expect(longestOwnMs).toBeGreaterThan(20);
    expect(longestOwnMs).toBeLessThanOrEqual(wallMs?.max as number);
  });

  it.each([
    ['at its begin', () => [collect({ type: 'minor' }), work(60)]],
    ['at its end', () => [work(60), collect({ type: 'minor' })]],
  ])('does not count a turn with a collection %s', async (_where, action) => {
    const { wallMs, longestOwnMs, garbageCollection } = await timed(action);
    expect(garbageCollection.count).toBeGreaterThan(0);
    expect(wallMs?.max).toBeGreaterThan(20);
    expect(longestOwnMs).toBeLessThan(20);
  });
});
