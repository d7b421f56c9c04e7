import type { PathExplanation, PeerHandle, SliceSubmission, TransferAgent } from '../../../agent/transfer-agent.js';
import { sum } from '../../../mapping/rank-place.js';
import type { Fragment, GroupPlan, TransferPlan } from '../../../mapping/transfer-plan.js';

/** Slices that are explained at most: what decides is seen early, and explaining costs the JavaScript thread. */
const MOST_EXPLAINED = 32;

export interface NotedPath extends PathExplanation {
  readonly peer: string;
}

/**
 * Role: notes which path the agent takes for slices, and why, while they are submitted.
 * Why: only a real slice has the size, pieces and peer that decide its path.
 */
export class PathNotes {
  /** The agent to use from now on. */
  readonly agent: TransferAgent;
  readonly #inner: TransferAgent;
  readonly #fragments = new Map<number, readonly Fragment[]>();
  readonly #peers = new Map<PeerHandle, string>();
  readonly #found = new Map<string, NotedPath>();
  #explained = 0;

  constructor(agent: TransferAgent) {
    this.#inner = agent;
    const noted: Partial<TransferAgent> = {
      addPeer: async (metadata, peerId) => {
        const peer = await agent.addPeer(metadata, peerId);
        this.#peers.set(peer, peerId);
        return peer;
      },
      prepareFragments: (peer, local, remote, fragments) => {
        const table = agent.prepareFragments(peer, local, remote, fragments);
        this.#fragments.set(table, fragments);
        return table;
      },
      submit: (submission) => {
        this.#note(submission);
        agent.submit(submission);
      },
    };
    const bound = new Map<string | symbol, unknown>(Object.entries(noted));
    this.agent = new Proxy(agent, {
      get(target, name): unknown {
        const known = bound.get(name);
        if (known !== undefined) return known;
        const value: unknown = Reflect.get(target, name, target);
        if (typeof value !== 'function') return value;
        // Private fields are the target's, not the proxy's. Once: what is measured goes through here.
        const method: unknown = value.bind(target);
        bound.set(name, method);
        return method;
      },
    });
  }

  /** One entry for each peer, path and means of copying, of the first slice that took it. */
  get found(): readonly NotedPath[] {
    return [...this.#found.values()];
  }

  #note({ peer, groups }: SliceSubmission): void {
    if (this.#explained >= MOST_EXPLAINED) return;
    const planned = groups.flatMap(({ fragments, slotPairs }): GroupPlan[] => {
      const known = this.#fragments.get(fragments);
      return known === undefined ? [] : [{ group: 0, peerGroup: 0, part: 0, fragments: known, slotPairs }];
    });
    const plan: TransferPlan = { groups: planned, stats: statsOf(planned) };
    if (plan.stats.bytes === 0) return;
    this.#explained++;
    let explanation: PathExplanation;
    try {
      explanation = this.#inner.explain(peer, plan);
    } catch {
      // A peer that was lost meanwhile: submitting says so, and a report without this path is still a report.
      return;
    }
    const name = this.#peers.get(peer) ?? String(peer);
    const key = `${name} ${explanation.path} ${explanation.copy?.means}`;
    if (!this.#found.has(key)) this.#found.set(key, { peer: name, ...explanation });
  }
}

/** Pieces that could be joined are counted apart: an upper bound. */
function statsOf(groups: readonly GroupPlan[]): TransferPlan['stats'] {
  const pairsOf = ({ slotPairs }: GroupPlan): number => slotPairs.length / 2;
  const descriptors = sum(groups.map((group) => pairsOf(group) * sum(group.fragments.map(({ count }) => count))));
  const bytes = sum(
    groups.map((group) => pairsOf(group) * sum(group.fragments.map((fragment) => fragment.bytes * fragment.count))),
  );
  return {
    pairs: sum(groups.map(pairsOf)),
    fragments: sum(groups.map(({ fragments }) => fragments.length)),
    bytes,
    descriptors,
    coalescedDescriptors: descriptors,
    averageDescriptorBytes: descriptors === 0 ? 0 : bytes / descriptors,
  };
}
