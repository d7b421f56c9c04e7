import { expect, it } from 'vitest';
import { SharedMetrics } from '../../../src/serve/front/shared-metrics.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

function setup(ageMs: number) {
  const clock = new FakeClock();
  const making: { readonly done: (text: string) => void; readonly fail: (error: Error) => void }[] = [];
  const make = (): Promise<string> => new Promise((done, fail) => making.push({ done, fail }));
  const metrics = new SharedMetrics(clock, ageMs, make);
  return { clock, making, get: async () => new TextDecoder().decode(await metrics.get()) };
}

it('makes one text for all who ask while it is made, and for a while after', async () => {
  const { clock, making, get } = setup(1000);
  const asked = Array.from({ length: 64 }, () => get());
  // However long it takes.
  clock.advance(5000);
  asked.push(get());
  expect(making).toHaveLength(1);
  making[0]?.done('first');
  expect(new Set(await Promise.all(asked))).toEqual(new Set(['first']));
  clock.advance(999);
  expect(await get()).toBe('first');
  clock.advance(1);
  const second = get();
  expect(making).toHaveLength(2);
  making[1]?.done('second');
  expect(await second).toBe('second');
});

it('does not keep what could not be made', async () => {
  const { making, get } = setup(1000);
  const asked = [get(), get()];
  making[0]?.fail(new Error('no'));
  for (const one of asked) await expect(one).rejects.toThrow('no');
  const again = get();
  making[1]?.done('text');
  expect([await again, making.length]).toEqual(['text', 2]);
});

it('of no age is made anew for who asks after it was', async () => {
  const { making, get } = setup(0);
  const asked = [get(), get()];
  making[0]?.done('a');
  expect(await Promise.all(asked)).toEqual(['a', 'a']);
  void get();
  expect(making).toHaveLength(2);
});
