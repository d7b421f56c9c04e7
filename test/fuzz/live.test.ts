import { describe, expect, it } from 'vitest';
import { decodeFrame, encodeFrame } from '../../src/wire/frame-codec.js';
import { badFrameOf, fuzzLive } from './fuzz-live.js';
import { transferred } from './transferred-pair.js';

const FRAMES = 50_000;
const NO_FRAME = new Uint8Array(40);

describe('a live transceiver under mutated frames', () => {
  it(`${FRAMES} of them: healthy requests complete with their bytes, every refusal is counted, nothing is left behind`, async () => {
    const { completed, expectedRefusals, pair } = await fuzzLive({ frames: FRAMES, seed: 11 });
    expect(completed).toBe(FRAMES / 500);
    for (const [index, server] of [pair.context, pair.generation].entries()) {
      const counters = server.transceiver.stats().counters;
      const refused = Object.entries(counters).filter(([name]) => name.startsWith('wire_error:'));
      const expected = Object.entries(expectedRefusals[index] ?? {}).map(([reason, count]) => [
        `wire_error:${reason}`,
        count,
      ]);
      expect(Object.fromEntries(refused)).toEqual(Object.fromEntries(expected));
      expect(expected.length).toBeGreaterThan(8);
    }
    // Every clock of every request that a hostile frame started runs out.
    await pair.run(30_000, 100);
    for (const server of [pair.context, pair.generation])
      expect(server.transceiver.stats()).toMatchObject({
        sendSessions: 0,
        receiveSessions: 0,
        held: 0,
        freeAuxSlots: 4,
      });
    expect(pair.clock.pendingTimerCount).toBeLessThan(20);
  }, 240_000);

  it('a peer is told of its bad frames once a second, however many it sends', async () => {
    const { pair, door, incarnation, origin } = await transferred();
    pair.network.log.length = 0;
    for (let i = 0; i < 5000; i++) door.deliver(badFrameOf(incarnation), origin);
    await pair.run(500);
    const errors = (): number => pair.network.sentTypes().filter((type) => type === 'ERROR').length;
    expect(errors()).toBe(1);
    await pair.run(600);
    for (let i = 0; i < 5000; i++) door.deliver(badFrameOf(incarnation), origin);
    expect(errors()).toBe(2);
    expect(pair.context.transceiver.stats().counters['wire_error:truncated']).toBe(10_000);
    // A stranger is told on its own connection, and as rarely.
    const stranger = pair.network.bind();
    const { endpoint } = pair.context.transceiver;
    stranger.send(endpoint, encodeFrame({ type: 'CANCEL_ACK', rid: 1n, ticket: 1n }, { incarnation: 5n }));
    for (let i = 0; i < 100; i++) pair.network.sayAs(stranger.endpoint, endpoint, NO_FRAME);
    await pair.run(900);
    expect(pair.network.sentTypes(({ to }) => to === stranger.endpoint)).toEqual(['ERROR']);
    expect(errors()).toBe(3);
    expect(
      decodeFrame(pair.network.log.find(({ message }) => message.type === 'ERROR')?.bytes ?? new Uint8Array()),
    ).toMatchObject({
      message: { type: 'ERROR', code: 'ERR_KVT_WIRE' },
    });
  });
});
