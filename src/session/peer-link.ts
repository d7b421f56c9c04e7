import type { FragmentTable, PeerHandle, SubmissionGroup, TransferAgent } from '../agent/transfer-agent.js';
import { InternalError } from '../errors.js';
import {
  expectedReceivers,
  type Fragment,
  type GroupPlan,
  mapRanks,
  type PeerMapping,
  type RankInfo,
  type TransferPlan,
} from '../mapping/index.js';

/** What both sides call the part of a mapping that moves between two layer groups; the aux buffer's is 0xffff0000. */
export function groupKey({ group, peerGroup, part }: Pick<GroupPlan, 'group' | 'peerGroup' | 'part'>): number {
  return (((group & 0xff) << 24) | ((peerGroup & 0xff) << 16) | (part & 0xffff)) >>> 0;
}

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
  submissionGroups(plan: TransferPlan): SubmissionGroup[] {
    return plan.groups.map((part) => {
      const table = this.#tables.get(part.fragments);
      if (table === undefined) throw new InternalError(`a plan of another mapping names group ${part.group}`);
      return { fragments: table, slotPairs: part.slotPairs, key: groupKey(part) };
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
