import { describe, expect, it } from 'vitest';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import { ConfigError } from '../../../src/errors.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

function ids(options: Partial<ConstructorParameters<typeof SnowflakeIds>[0]> = {}) {
  const clock = new FakeClock(0);
  const unixTimeAtOriginMs = DEFAULT_EPOCH_MS + 1_000_000;
  return { clock, ids: new SnowflakeIds({ clock, unixTimeAtOriginMs, nodeId: 0xa5, processId: 0x2b, ...options }) };
}

describe('SnowflakeIds', () => {
  it('lays out time, node, process and counter', () => {
    const { clock, ids: source } = ids();
    expect(source.next()).toBe((1_000_000n << 23n) | (0xa5n << 15n) | (0x2bn << 9n));
    expect(source.next() & 0x1ffn).toBe(1n);
    clock.advance(2.5);
    expect(source.next()).toBe((1_000_002n << 23n) | (0xa5n << 15n) | (0x2bn << 9n));
  });

  it('stays unique and ascending beyond 512 ids in a millisecond', () => {
    const { clock, ids: source } = ids();
    const made: bigint[] = [];
    for (let burst = 0; burst < 3; burst++) {
      for (let i = 0; i < 700; i++) made.push(source.next());
      clock.advance(1);
    }
    expect(new Set(made).size).toBe(2100);
    expect(made).toEqual([...made].sort((a, b) => (a < b ? -1 : 1)));
    expect(made.every((id) => ((id >> 15n) & 0xffn) === 0xa5n)).toBe(true);
  });

  it('differs between processes and nodes at the same time', () => {
    const all = [ids(), ids({ nodeId: 1 }), ids({ processId: 1 })].map(({ ids: source }) => source.next());
    expect(new Set(all).size).toBe(3);
  });

  it('is a global id from two minutes after the epoch on', () => {
    const early = ids({ unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 2 ** 17 - 1, nodeId: 0, processId: 0 });
    expect(() => early.ids.next()).toThrow(ConfigError);
    early.clock.advance(1);
    expect(early.ids.next()).toBe(1n << 40n);
  });

  it('fits 64 bits until the time does not, and then says so', () => {
    const last = ids({ unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 2 ** 41 - 1, nodeId: 255, processId: 63 });
    expect(last.ids.next()).toBe((1n << 64n) - 512n);
    last.clock.advance(1);
    expect(() => last.ids.next()).toThrow(ConfigError);
    expect(() => ids({ unixTimeAtOriginMs: 0 }).ids.next()).toThrow(/check the system time/);
  });

  it.each([
    ['nodeId', { nodeId: 256 }],
    ['nodeId', { nodeId: -1 }],
    ['processId', { processId: 64 }],
    ['processId', { processId: 0.5 }],
  ])('refuses %s out of range', (name, wrong) => {
    expect(() => ids(wrong)).toThrow(ConfigError);
    expect(() => ids(wrong)).toThrow(name);
  });
});
