import { expect, it } from 'vitest';
import { eventOf, eventStream } from '../../../src/serve/front/event-stream.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

function setup() {
  const clock = new FakeClock();
  const log: string[] = [];
  let made = 0;
  const body = eventStream({
    clock,
    next: async () => (made < 3 ? eventOf({ n: made++ }) : null),
    onGone: () => log.push('gone'),
    stallLimitMs: 1000,
    onStalled: () => log.push('stalled'),
  });
  return { clock, log, reader: body.getReader(), made: () => made };
}

it('makes an event when it is read, and no sooner', async () => {
  const { clock, reader, made, log } = setup();
  await clock.turn();
  expect(made()).toBe(0);
  const texts: string[] = [];
  for (let part = await reader.read(); part.value !== undefined; part = await reader.read()) {
    texts.push(new TextDecoder().decode(part.value));
    await clock.turn();
    expect(made()).toBe(texts.length);
  }
  expect(texts).toEqual(['data: {"n":0}\n\n', 'data: {"n":1}\n\n', 'data: {"n":2}\n\n']);
  clock.advance(5000);
  expect(log).toEqual([]);
});

it('notices a reader that takes nothing for too long', async () => {
  const { clock, reader, log } = setup();
  await reader.read();
  clock.advance(999);
  expect(log).toEqual([]);
  clock.advance(1);
  expect(log).toEqual(['stalled']);
});

it('notices a reader that is gone, also one that waits', async () => {
  const { clock, reader, log } = setup();
  await reader.read();
  await reader.cancel();
  clock.advance(5000);
  expect(log).toEqual(['gone']);
});
