import type { FragmentTable, PeerHandle, TransferAgent } from '../agent/transfer-agent.js';
import { InternalError } from '../errors.js';
import {
  expectedReceivers,
  type Fragment,
  mapRanks,
  type PeerMapping,
  type RankInfo,
  type TransferPlan,
} from '../mapping/index.js';

/** The way to write into one peer's pages: planned once, so that a slice costs only its own blocks (I5). */
export class PeerLink {
  readonly handle: PeerHandle;
  readonly mapping: PeerMapping;
  /** Flat ranks of the peer's instance and DP group that this rank serves, the peer among them. */
  readonly expectedReceivers: ReadonlySet<number>;
  readonly #tables: ReadonlyMap<readonly Fragment[], FragmentTable>;

  constructor(
    handle: PeerHandle,
    mapping: PeerMapping,
    expected: ReadonlySet<number>,
    tables: ReadonlyMap<readonly Fragment[], FragmentTable>,
  ) {
    this.handle = handle;
    this.mapping = mapping;
    this.expectedReceivers = expected;
    this.#tables = tables;
  }

  /** A plan as the agent takes it. */
  submissionGroups(plan: TransferPlan): { readonly fragments: FragmentTable; readonly slotPairs: Int32Array }[] {
    return plan.groups.map(({ group, fragments, slotPairs }) => {
      const table = this.#tables.get(fragments);
      if (table === undefined) throw new InternalError(`a plan of another mapping names group ${group}`);
      return { fragments: table, slotPairs };
    });
  }
}

/** Loads the peer's memory into the agent and binds the fragments of every group to it. */
export async function linkPeer(agent: TransferAgent, local: RankInfo, info: RankInfo): Promise<PeerLink> {
  const mapping = mapRanks(local, info);
  const expected = new Set(expectedReceivers(local, info, info.dpRank));
  const handle = await agent.addPeer(info.agentMetadata, `${info.instanceName}/${info.rank}`);
  try {
    const tables = new Map<readonly Fragment[], FragmentTable>();
    for (const { fragments } of [...mapping.groups, ...(mapping.aux === null ? [] : [mapping.aux])]) {
      if (fragments.length === 0) continue;
      tables.set(fragments, agent.prepareFragments(handle, local.pageTable, info.pageTable, fragments));
    }
    return new PeerLink(handle, mapping, expected, tables);
  } catch (error) {
    await agent.removePeer(handle);
    throw error;
  }
}
