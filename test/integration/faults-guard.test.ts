import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createAgent } from '../../src/agent/native-agent.js';
import type { TransferAgent } from '../../src/agent/transfer-agent.js';
import type { LayerGroup } from '../../src/cache/kv-cache-manager.js';
import { buildPageTable, rebasePageTable } from '../../src/mapping/build-page-table.js';
import type { PageTable } from '../../src/mapping/page-table.js';
import { GuardedCache } from './faults/guarded-cache.js';

const GROUPS: readonly LayerGroup[] = [
  { kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 4 },
];
const PROMPT = { promptLen: 8, blockHashes: ['a', 'b'] };

/** The fault tests believe this class: here it must say what it is there to say. */
describe('the guard of the fault tests', () => {
  let agent: TransferAgent;
  let cache: GuardedCache;
  let table: PageTable;

  beforeEach(async () => {
    agent = await createAgent({ kind: 'host', name: 'guarded' });
    cache = new GuardedCache(GROUPS, 4, 1);
    const shape = { kvHeads: 1, headDim: 8, dtype: 'bfloat16', poolLayout: 'per-layer', blockLayout: 'HND' } as const;
    const layout = buildPageTable({ groups: cache.layerGroups, ...shape });
    const pool = await agent.allocatePool({ sizeBytes: layout.sizeBytes });
    table = rebasePageTable(layout.table, pool.base);
    cache.guard(agent, table);
    cache.addRequest(1, PROMPT);
    expect(cache.ensureCapacity(1, 8)).toBe(true);
  });
  afterEach(async () => {
    await agent.close(1000);
  });

  /** One byte of a page of the second layer. */
  function write(slot: number): void {
    const { base, slotStride } = table.pools[1] as PageTable['pools'][number];
    agent.writeBytes(base + slot * slotStride + 7, Uint8Array.of(1));
  }
  const slots = (): readonly number[] => [...cache.getBlockIdsRange(1, 0, 0, 2).slots];

  it('takes no offence at writes to pages that a request or a transfer holds', () => {
    cache.pin(1);
    for (const slot of slots()) write(slot);
    expect(cache.check()).toEqual([]);
    const held = slots();
    cache.freeRequest(1);
    for (const slot of held) write(slot);
    expect(cache.check()).toEqual([]);
    cache.unpin(1);
    expect(cache.check()).toEqual([]);
    expect(cache.stats().map(({ free }) => free)).toEqual([4]);
  });

  it('sees a byte written to a page that was given back', () => {
    const [slot = 0] = slots();
    cache.freeRequest(1);
    write(slot);
    expect(cache.check()).toEqual([`free page ${slot} of group 0, pool 1: byte 7 is 1, not 90`]);
  });

  it('sees it also when the page is handed out again before anybody looks', () => {
    const [slot = 0] = slots();
    cache.freeRequest(1);
    write(slot);
    cache.addRequest(2, { promptLen: 16, blockHashes: ['c', 'd', 'e', 'f'] });
    expect(cache.ensureCapacity(2, 16)).toBe(true);
    expect(cache.check()).toEqual([`page ${slot} of group 0 was written while it was free: byte 7 is 1, not 90`]);
  });

  it('sees a byte written beside a page', () => {
    const [slot = 0] = slots();
    write(slot + 1);
    expect(cache.check()).toEqual([`canary ${slot + 1} of group 0, pool 1: byte 7 is 1, not 195`]);
  });
});
