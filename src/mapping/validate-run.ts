import { ProtocolError } from '../errors.js';
import { type BlockRun, HOLE } from '../geometry/block-run.js';
import type { PageTableGroup } from './page-table.js';

/**
 * Checks the destination slots a peer asks for against the page table it published. O(slots of the run), once per request.
 *
 * @param blockEnd ordinals at or past it do not exist in the prompt
 * @param field how the message names the run
 * @throws ProtocolError for a run past the prompt, a slot outside the pool, or a slot named for two blocks (one would be lost)
 */
export function validateRun(run: BlockRun, group: PageTableGroup, blockEnd: number, field: string): void {
  const refuse = (rule: string): never => {
    throw new ProtocolError(`${field} ${rule}`, { details: { field } });
  };
  const end = run.begin + run.slots.length;
  if (!Number.isSafeInteger(run.begin) || run.begin < 0) refuse(`begins at ${String(run.begin)}`);
  if (end > blockEnd) refuse(`ends at block ${end}, the prompt has ${blockEnd}`);
  const seen = new Set<number>();
  for (const slot of run.slots) {
    if (slot === HOLE) continue;
    if (slot < 0 || slot >= group.slotCount) refuse(`names slot ${slot}, the group has ${group.slotCount}`);
    if (seen.has(slot)) refuse(`names slot ${slot} for two blocks`);
    seen.add(slot);
  }
}
