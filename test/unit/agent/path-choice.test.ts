import { describe, expect, it } from 'vitest';
import { type BounceOptions, bounceRecord, resolveBounce } from '../../../src/agent/bounce.js';
import { choosePath } from '../../../src/agent/path-choice.js';
import type { DataPath, PathAlternative, PathExplanation } from '../../../src/agent/transfer-agent.js';

const SIZE = { sizeBytes: 64 << 20 };
const PLAN = { groups: [{}], stats: { coalescedDescriptors: 2048, bytes: 64 << 20 } } as never;

function chosen(path: DataPath, options: BounceOptions, isRdmaAvailable = true) {
  const path_ = (name: DataPath, isAvailable: boolean, estimatedUs: number): PathAlternative => {
    return { path: name, isAvailable, estimatedUs, reason: `reason of ${name}` };
  };
  const all = [
    path_('host', false, 5000),
    path_('rdma', isRdmaAvailable, 10_874.4),
    path_('p2p', path === 'p2p', 205),
    path_('bounce', true, 405.6),
  ];
  const plain = { path: 'rdma', reason: 'plain', alternatives: [] } as never;
  return choosePath(all, { isDevice: true, path }, plain, resolveBounce(options), PLAN);
}
const arenaOf = ({ alternatives = [] }: PathExplanation) => alternatives.find(({ path }) => path === 'bounce')?.reason;

describe('explain() of pages of a GPU with an arena on both sides', () => {
  it('names both costs where the cheaper one was taken', () => {
    const bounced = chosen('bounce', SIZE);
    expect(bounced.path).toBe('bounce');
    expect(bounced.reason).toBe('reason of bounce; taken by cost: 406 µs against 10874 µs by rdma');
    expect(arenaOf(chosen('rdma', SIZE))).toBe('reason of bounce; not taken by cost: 406 µs against 10874 µs by rdma');
  });

  it('names the thresholds where the operator set one of them', () => {
    const held = chosen('rdma', { ...SIZE, minDescriptorCount: 4096 });
    expect(held.path).toBe('rdma');
    expect(arenaOf(held)).toMatch(
      /^2048 descriptors of 32768 bytes on average; bounced from 4096 of at most 16384 bytes/,
    );
    expect(chosen('bounce', { ...SIZE, maxAverageDescriptorSize: 1 << 20 }).reason).toMatch(/^2048 descriptors/);
  });

  it('compares nothing where p2p is taken, or nothing else leads there', () => {
    expect(arenaOf(chosen('p2p', SIZE))).toBe('reason of bounce');
    expect(chosen('bounce', SIZE, false).reason).toBe('reason of bounce');
    expect(chosen('bounce', { ...SIZE, isForced: true }).reason).toBe('bounce is forced');
  });
});

describe('the record of an arena', () => {
  it('says whether a threshold was set', () => {
    const last = (options: BounceOptions) => bounceRecord(resolveBounce(options)).at(-1);
    expect(last(SIZE)).toBe(0);
    expect(last({ ...SIZE, minDescriptorCount: 1024 })).toBe(1);
    expect(last({ ...SIZE, maxAverageDescriptorSize: 16 << 10 })).toBe(1);
    expect([...bounceRecord(resolveBounce(SIZE))]).toEqual([64 << 20, 32 << 20, 1024, 16 << 10, 8, 30_000, 16, 0, 0]);
  });
});
