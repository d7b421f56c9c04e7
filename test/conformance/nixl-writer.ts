import { createAgent } from '../../src/agent/native-agent.js';
import type {
  Completion,
  FragmentTable,
  PathExplanation,
  PeerHandle,
  Pool,
  SubmissionNotice,
  TransferAgent,
} from '../../src/agent/transfer-agent.js';
import type { PageTable } from '../../src/mapping/page-table.js';
import type { Fragment, TransferPlan } from '../../src/mapping/transfer-plan.js';
import { Collector, HANG_LIMIT_MS, withDeadline } from '../support/deadline.js';
import type { NixlTarget } from './nixl-target.js';

/** A target as the writer knows it: pages of one size over its whole pool. */
export interface Connection {
  readonly peer: PeerHandle;
  readonly fragments: FragmentTable;
  readonly pageBytes: number;
}

function wholePage(bytes: number): Fragment {
  return { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes, count: 1, srcStride: 0, dstStride: 0 };
}

/** A writing agent with one pool in this process, and everything it reported. */
export class NixlWriter {
  readonly agent: TransferAgent;
  readonly pool: Pool;
  readonly #notices = new Collector<SubmissionNotice>();

  private constructor(agent: TransferAgent, pool: Pool) {
    this.agent = agent;
    this.pool = pool;
    agent.onCompletions((batch) => batch.forEach(this.#notices.push));
  }

  /** @param tls UCX_TLS, which UCX reads from the environment when the agent opens */
  static async open(poolBytes: number, tls: string): Promise<NixlWriter> {
    process.env['UCX_TLS'] = tls;
    const agent = await createAgent({ kind: 'nixl', name: 'writer' });
    return new NixlWriter(agent, await agent.allocatePool({ sizeBytes: poolBytes }));
  }

  async connect(target: NixlTarget, pageBytes: number): Promise<Connection> {
    const peer = await this.agent.addPeer(target.hello.metadata, 'target');
    const table = (base: number): PageTable => ({
      pools: [
        {
          base,
          memory: { kind: 'host' },
          slotBytes: pageBytes,
          slotStride: pageBytes,
          slotCount: Math.floor(this.pool.sizeBytes / pageBytes),
        },
      ],
      layerGroups: [],
      aux: null,
    });
    const fragments = this.agent.prepareFragments(peer, table(this.pool.base), table(target.hello.base), [
      wholePage(pageBytes),
    ]);
    return { peer, fragments, pageBytes };
  }

  /** Submissions of one flow end one after the other. */
  submit(id: number, { peer, fragments }: Connection, slotPairs: Int32Array, flow = 1): void {
    this.agent.submit({ id, peer, flow, groups: [{ fragments, slotPairs }], after: null });
  }

  explain({ peer, pageBytes }: Connection, slotPairs: Int32Array): PathExplanation {
    const groups = [{ group: 0, peerGroup: 0, part: 0, fragments: [wholePage(pageBytes)], slotPairs }];
    // Judged by the slots of its groups alone.
    return this.agent.explain(peer, { groups, stats: {} } as unknown as TransferPlan);
  }

  completions(): Completion[] {
    return this.#notices.values.filter((notice) => notice.kind === 'completion');
  }

  /** Submissions whose memory was reported drained after their completion. */
  drainedLater(): number[] {
    return this.#notices.values.filter(({ kind }) => kind === 'drained').map(({ submission }) => submission);
  }

  async completionOf(submission: number): Promise<Completion> {
    const find = (): Completion | undefined => this.completions().find((each) => each.submission === submission);
    await this.#until(() => find() !== undefined, `submission ${submission}`);
    return find() as Completion;
  }

  async completionsOf(count: number): Promise<Completion[]> {
    await this.#until(() => this.completions().length >= count, `${count} submissions`);
    return this.completions();
  }

  async #until(isReached: () => boolean, what: string): Promise<void> {
    const reached = async (): Promise<void> => {
      while (!isReached()) await this.#notices.waitFor(this.#notices.values.length + 1);
    };
    await withDeadline(reached(), HANG_LIMIT_MS, () => `${what} did not end; ${this.completions().length} did`);
  }
}
