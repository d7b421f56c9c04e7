import { staleBlockEnd } from '../geometry/stale-block-end.js';
import type { LayerGroup } from './kv-cache-manager.js';
import type { SlotPool } from './slot-pool.js';

export interface MatchableGroup {
  readonly group: LayerGroup;
  readonly pool: SlotPool;
}

/**
 * The longest prefix, in whole blocks, that every layer group can serve. A full-attention group needs each block of it. A windowed
 * group needs the blocks that the first token after it still sees, `[staleBlockEnd, length)`: older ones are never read again.
 *
 * @param maxBlocks upper bound of the answer
 */
export function matchPrefix(groups: readonly MatchableGroup[], hashes: readonly string[], maxBlocks: number): number {
  let longest = Math.min(maxBlocks, hashes.length);
  const windowed: { readonly group: LayerGroup; readonly unbroken: Int32Array }[] = [];
  for (const { group, pool } of groups) {
    if (group.windowSize !== null) continue;
    let length = 0;
    while (length < longest && pool.find(hashes[length] as string) !== null) length++;
    longest = length;
  }
  for (const { group, pool } of groups) {
    if (group.windowSize === null) continue;
    // unbroken[n]: how many blocks up to block n - 1 are present without a gap.
    const unbroken = new Int32Array(longest + 1);
    for (let n = 1; n <= longest; n++) {
      unbroken[n] = pool.find(hashes[n - 1] as string) === null ? 0 : (unbroken[n - 1] as number) + 1;
    }
    windowed.push({ group, unbroken });
  }
  const serves = (length: number): boolean =>
    windowed.every(({ group, unbroken }) => {
      const stale = staleBlockEnd(length * group.tokensPerBlock, group.windowSize, group.tokensPerBlock);
      return (unbroken[length] as number) >= length - stale;
    });
  while (longest > 0 && !serves(longest)) longest--;
  return longest;
}
