import type { FragmentTable, PeerHandle, TransferAgent } from '../agent/transfer-agent.js';
import { InternalError } from '../errors.js';
import {
  AUX_GROUP,
  type GroupMapping,
  mapPeer,
  type PageTable,
  type PeerMapping,
  type RankInfo,
  type TransferPlan,
} from '../mapping/index.js';

/** The way to write into one peer's pages: planned once, so that a slice costs only its own blocks (I5). */
export class PeerLink {
  readonly handle: PeerHandle;
  readonly mapping: PeerMapping;
  readonly #tables: ReadonlyMap<number, FragmentTable>;

  constructor(handle: PeerHandle, mapping: PeerMapping, tables: ReadonlyMap<number, FragmentTable>) {
    this.handle = handle;
    this.mapping = mapping;
    this.#tables = tables;
  }

  /** A plan as the agent takes it. */
  submissionGroups(plan: TransferPlan): { readonly fragments: FragmentTable; readonly slotPairs: Int32Array }[] {
    return plan.groups.map(({ group, slotPairs }) => {
      const fragments = this.#tables.get(group);
      if (fragments === undefined) throw new InternalError(`a plan names group ${group}, which was not prepared`);
      return { fragments, slotPairs };
    });
  }
}

/** Loads the peer's memory into the agent and binds the fragments of every group to it. */
export async function linkPeer(agent: TransferAgent, local: PageTable, info: RankInfo): Promise<PeerLink> {
  const mapping = mapPeer(local, info.pageTable);
  const handle = await agent.addPeer(info.agentMetadata, `${info.instanceName}/${info.rank}`);
  try {
    const tables = new Map<number, FragmentTable>();
    const bind = (index: number, group: GroupMapping): void => {
      if (group.fragments.length === 0) return;
      tables.set(index, agent.prepareFragments(handle, local, info.pageTable, group.fragments));
    };
    for (const group of mapping.groups) bind(group.group, group);
    if (mapping.aux !== null) bind(AUX_GROUP, mapping.aux);
    return new PeerLink(handle, mapping, tables);
  } catch (error) {
    await agent.removePeer(handle);
    throw error;
  }
}
