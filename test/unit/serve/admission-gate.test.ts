import { describe, expect, it } from 'vitest';
import { AdmissionGate, type Place } from '../../../src/serve/front/admission-gate.js';
import { SpentClock } from '../../sim-lite/spent-clock.js';

/** One request is live, and so many wait. */
async function crowded(count: number) {
  const clock = new SpentClock();
  const gate = new AdmissionGate(clock, { maxLive: 1, maxQueued: count, queueTimeoutMs: 60_000 });
  const first: Place = await gate.enter(new AbortController().signal);
  const aborts = Array.from({ length: count }, () => new AbortController());
  const ends: string[] = aborts.map(() => 'waits');
  for (const [index, { signal }] of aborts.entries()) {
    const tell = (end: string): void => {
      expect(ends[index]).toBe('waits');
      ends[index] = end;
    };
    void gate.enter(signal).then(
      () => tell('admitted'),
      (error: { status: number }) => tell(String(error.status)),
    );
  }
  await clock.turn();
  return { clock, gate, first, aborts, ends };
}

describe('a gate that closes while many wait', () => {
  it('turns them away in portions, each once, and lets none of them in', async () => {
    const { clock, gate, first, aborts, ends } = await crowded(6);
    let closed = false;
    void gate.close().then(() => {
      closed = true;
    });
    expect(() => gate.assertRoom()).toThrow('this server is shutting down');
    await clock.turn();
    expect([ends, closed]).toEqual([['503', '503', 'waits', 'waits', 'waits', 'waits'], false]);
    // A place is free now, and the third is gone by itself.
    first.leave();
    aborts[2]?.abort();
    await clock.turn(5);
    expect([ends, closed]).toEqual([['503', '503', '499', '503', '503', '503'], true]);
    await gate.idle();
    expect([gate.live, gate.queued, clock.pendingTimerCount]).toEqual([0, 0, 0]);
  });

  it('that stays open lets the next one in when a place is free', async () => {
    const { clock, gate, first, ends } = await crowded(2);
    first.leave();
    await clock.turn();
    expect([ends, gate.live, gate.queued]).toEqual([['admitted', 'waits'], 1, 1]);
  });
});
