import { CompatibilityError } from '../errors.js';
import {
  auxWriterOf,
  expectedWriters,
  type RankInfo,
  type RankPlaceInDp,
  writersOfEveryGroup,
} from '../mapping/index.js';

/** Of an instance that says it has more, nobody asks each: the writers of one request would hold up all others. */
const MAX_ASKED_GROUPS = 256;

/** A context rank that will be asked to write. */
export interface ChosenWriter {
  /** Flat rank in its instance. */
  readonly rank: number;
  readonly endpoint: string;
  /** Of its group, the one that sends aux too. */
  readonly sendsAux: boolean;
}

/** The writers of one DP group; without attention DP, all of them. */
export interface ChosenGroup {
  readonly dpRank: number;
  readonly writers: readonly ChosenWriter[];
}

/**
 * Whom a generation rank asks for one request, from what any rank of the context instance says of its instance.
 * @param ctxDpRank DP group that computed the prompt. Null with attention DP: not known yet, so every group is asked; one of them writes
 * @throws CompatibilityError for a group that the instance does not have, for one that is not known among more than 256, or when no rank of it shares
 *   anything with this one
 */
export function chooseWriters(self: RankPlaceInDp, context: RankInfo, ctxDpRank: number | null): ChosenGroup[] {
  const group = (dpRank: number, ranks: readonly number[]): ChosenGroup => {
    const aux = auxWriterOf(ranks);
    return {
      dpRank,
      writers: ranks.map((rank) => ({
        rank,
        endpoint: context.rankEndpoints[rank] as string,
        sendsAux: rank === aux,
      })),
    };
  };
  const { instanceName, attentionDp, dpSize } = context;
  let groups: ChosenGroup[];
  if (!attentionDp) groups = [group(0, expectedWriters(self, context, 0))];
  else if (ctxDpRank === null) {
    if (dpSize > MAX_ASKED_GROUPS)
      throw new CompatibilityError(
        `${instanceName} has ${dpSize} DP groups, and at most ${MAX_ASKED_GROUPS} are asked which of them has a request; ` +
          'the coordinator must say it (ctxDpRank)',
      );
    groups = writersOfEveryGroup(self, context).map((ranks, dpRank) => group(dpRank, ranks));
  } else if (ctxDpRank >= 0 && ctxDpRank < dpSize && Number.isInteger(ctxDpRank))
    groups = [group(ctxDpRank, expectedWriters(self, context, ctxDpRank))];
  else
    throw new CompatibilityError(
      `ctxDpRank ${ctxDpRank}: ${instanceName} has ${dpSize} DP groups; the coordinator must pass on what the context server answered`,
    );
  if (groups.some(({ writers }) => writers.length === 0))
    throw new CompatibilityError(`no rank of ${instanceName} shares a layer, head or block with this rank`);
  return groups;
}
