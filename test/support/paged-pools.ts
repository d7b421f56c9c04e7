import type { Pool } from '../../src/agent/transfer-agent.js';
import type { PageTable } from '../../src/mapping/page-table.js';
import type { Fragment } from '../../src/mapping/transfer-plan.js';

/** A page table of one pool without views: for agents, which look at pools only. */
export function poolTable(pool: Pool, slotBytes: number, slotStride = slotBytes): PageTable {
  return {
    pools: [
      {
        base: pool.base,
        memory: { kind: 'host' },
        slotBytes,
        slotStride,
        slotCount: Math.floor(pool.sizeBytes / slotStride),
      },
    ],
    layerGroups: [],
    aux: null,
  };
}

/** `bytes` bytes at `offset` of both slots, in one piece unless more is said. */
export function fragment(fields: Partial<Fragment> & { readonly bytes: number }): Fragment {
  return {
    srcPool: 0,
    srcOffset: 0,
    dstPool: 0,
    dstOffset: 0,
    count: 1,
    srcStride: 0,
    dstStride: 0,
    ...fields,
  };
}

/** Bytes that differ everywhere and from seed to seed. */
export function patterned(length: number, seed: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let state = (seed * 2654435761 + 1) >>> 0;
  for (let i = 0; i < length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

/** 0 .. count - 1 in an order that the seed decides. */
export function shuffled(count: number, seed: number): Int32Array {
  const values = Int32Array.from({ length: count }, (_, i) => i);
  let state = seed >>> 0;
  for (let i = count - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = (state >>> 8) % (i + 1);
    [values[i], values[j]] = [values[j] as number, values[i] as number];
  }
  return values;
}

/** What `destination` holds after the moves, computed byte by byte. */
export function expectedBytes(
  source: Uint8Array,
  destination: Uint8Array,
  sourceStride: number,
  destinationStride: number,
  fragments: readonly Fragment[],
  slotPairs: Int32Array,
): Uint8Array {
  const expected = destination.slice();
  for (let i = 0; i < slotPairs.length; i += 2) {
    const from = (slotPairs[i] as number) * sourceStride;
    const to = (slotPairs[i + 1] as number) * destinationStride;
    for (const f of fragments) {
      for (let piece = 0; piece < f.count; piece++) {
        const at = from + f.srcOffset + piece * f.srcStride;
        expected.set(source.subarray(at, at + f.bytes), to + f.dstOffset + piece * f.dstStride);
      }
    }
  }
  return expected;
}
