import type { FragmentTable, PeerHandle, TransferAgent } from '../agent/transfer-agent.js';
import type { PageTable } from '../mapping/page-table.js';
import { planAuxFragments, planFragments } from '../mapping/plan.js';
import type { RankInfo } from '../mapping/rank-info.js';
import type { Fragment } from '../mapping/transfer-plan.js';

export interface LinkedGroup {
  readonly fragments: readonly Fragment[];
  readonly table: FragmentTable;
}

/** The way to write into one peer's pages: planned once, so that a slice costs only its own blocks (I5). */
export interface PeerLink {
  readonly handle: PeerHandle;
  /** By layer group; null where nothing of the group is the peer's. */
  readonly groups: readonly (LinkedGroup | null)[];
  readonly aux: LinkedGroup | null;
}

/** Loads the peer's memory into the agent and binds the fragments of every group to it. */
export async function linkPeer(agent: TransferAgent, local: PageTable, info: RankInfo): Promise<PeerLink> {
  const handle = await agent.addPeer(info.agentMetadata, `${info.instanceName}/${info.rank}`);
  try {
    const bind = (fragments: readonly Fragment[]): LinkedGroup | null =>
      fragments.length === 0
        ? null
        : { fragments, table: agent.prepareFragments(handle, local, info.pageTable, fragments) };
    return {
      handle,
      groups: local.layerGroups.map((_, group) => bind(planFragments(local, info.pageTable, group))),
      aux: bind(planAuxFragments(local, info.pageTable)),
    };
  } catch (error) {
    await agent.removePeer(handle);
    throw error;
  }
}
