import { describe, expect, it } from 'vitest';
import { LogShare } from '../../../src/session/log-share.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { Stranger } from '../../sim-lite/stranger.js';
import { helloOf, underWay } from './under-way.js';

describe('LogShare', () => {
  it('gives sixteen lines a second, and says how many got none', () => {
    const clock = new FakeClock(0);
    const share = new LogShare(clock);
    const lines = Array.from({ length: 100 }, () => share.take());
    expect(lines.filter((more) => more === '')).toHaveLength(16);
    expect(lines.filter((more) => more === null)).toHaveLength(84);
    clock.advance(999);
    expect(share.take()).toBeNull();
    clock.advance(1);
    expect(share.take()).toBe(' (85 more like it got no line)');
    expect(share.take()).toBe('');
  });
});

describe('peers that come and go', () => {
  it('do not fill the log', async () => {
    const { world, context, generation } = await underWay();
    const { hello } = helloOf(world, generation);
    const { endpoint } = context.transceiver;
    const before = context.notes.length + context.warnings.length;
    const many = Array.from({ length: 60 }, (_, i) => new Stranger(world.network, 0x7000n + BigInt(i)));
    for (const stranger of many) stranger.greet(endpoint, hello);
    await world.run(200);
    expect(context.transceiver.stats().peers).toHaveLength(61);
    for (const stranger of many)
      stranger.say(endpoint, { type: 'GOODBYE', endpoint: stranger.endpoint, drainMs: 0, reason: 'bye' });
    await world.run(20);
    expect(context.transceiver.stats()).toMatchObject({ counters: { peers_lost: 60 } });
    expect(context.notes.length + context.warnings.length - before).toBe(16);
  });
});
