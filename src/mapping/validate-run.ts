import { ProtocolError } from '../errors.js';
import { type BlockRun, HOLE, runEnd } from '../geometry/block-run.js';
import { typeName } from '../geometry/bounds.js';
import type { PageTableGroup } from './page-table.js';
import { repeatedSlot } from './repeated-slot.js';

/**
 * Checks the destination slots a peer asks for against the page table it published. O(slots of the run), once per request.
 *
 * @param blockEnd ordinals at or past it do not exist in the prompt
 * @param field how the message names the run
 * @param place of the rank that published the table: a context parallel rank r of n owns every n-th block from r on; default: all
 * @throws ProtocolError for slots that are no Int32Array, a run past the prompt or of blocks that the rank does not own, a slot outside the pool, or a slot named
 *   for two blocks (one would be lost)
 */
export function validateRun(
  run: BlockRun,
  group: PageTableGroup,
  blockEnd: number,
  field: string,
  place: { readonly cpSize: number; readonly cpRank: number } = { cpSize: 1, cpRank: 0 },
): void {
  const refuse = (rule: string): never => {
    throw new ProtocolError(`${field} ${rule}`, { details: { field } });
  };
  if (!(run.slots instanceof Int32Array)) refuse(`has slots that are no Int32Array, but ${typeName(run.slots)}`);
  if (!Number.isSafeInteger(run.begin) || run.begin < 0) refuse(`begins at ${String(run.begin)}`);
  const isState = group.kind === 'state';
  const stride = isState ? 1 : place.cpSize;
  if (run.slots.length > 0 && stride > 1 && run.begin % stride !== place.cpRank)
    refuse(`begins at block ${run.begin}, which context parallel rank ${place.cpRank} of ${stride} does not own`);
  const [limit, whole] = isState ? [1, 'the state is one slot'] : [blockEnd, `the prompt has ${blockEnd}`];
  // Before its end is computed: that of a run near 2^53 is no number to compare.
  if (run.begin > limit) refuse(`begins at block ${run.begin}, ${whole}`);
  const end = runEnd({ begin: run.begin, slots: run.slots, stride });
  if (end > limit) refuse(`ends at block ${end}, ${whole}`);
  const { slots } = run;
  for (let i = 0; i < slots.length; i++) {
    const slot = slots[i] as number;
    if (slot !== HOLE && (slot < 0 || slot >= group.slotCount))
      refuse(`names slot ${slot}, the group has ${group.slotCount}`);
  }
  const twice = repeatedSlot(slots);
  if (twice !== HOLE) refuse(`names slot ${twice} for two blocks`);
}
