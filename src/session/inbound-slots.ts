import type { FragmentTable, InboundGroup, TransferAgent } from '../agent/transfer-agent.js';
import { InternalError } from '../errors.js';
import type { BlockRun } from '../geometry/block-run.js';
import type { Fragment, PeerMapping } from '../mapping/index.js';
import { groupKey, type PeerLink } from './peer-link.js';

type Bouncing = Pick<Required<TransferAgent>, 'prepareInbound' | 'expectInbound' | 'endInbound'>;

/**
 * Role: tells an agent that scatters itself (bounce) which slots each writer of a receive may reach.
 * Why: a bounced slice names slots, and the agent takes none that its own side did not register for that writer and ticket.
 * Ordering: `expect` is handed to the agent before it returns, so that a writer that is asked afterwards finds it in place.
 */
export class InboundSlots {
  readonly #agent: Bouncing;
  readonly #tables = new WeakMap<readonly Fragment[], FragmentTable>();

  private constructor(agent: Bouncing) {
    this.#agent = agent;
  }

  /** Null for agents that do not bounce. */
  static of(agent: TransferAgent): InboundSlots | null {
    if (agent.bounces !== true) return null;
    if (agent.prepareInbound === undefined || agent.expectInbound === undefined || agent.endInbound === undefined)
      throw new InternalError(`agent ${agent.name} bounces, but takes no inbound slots`);
    return new InboundSlots(agent as Bouncing);
  }

  /**
   * @param mapping from the writer to this rank
   * @throws KvTransceiverError when the agent refuses the slots
   */
  async expect(link: PeerLink, mapping: PeerMapping, ticket: bigint, runs: readonly BlockRun[]): Promise<void> {
    const groups: InboundGroup[] = [];
    for (const group of mapping.groups) {
      const run = runs[group.peerGroup];
      if (group.fragments.length === 0 || run === undefined || run.slots.length === 0) continue;
      groups.push({ key: groupKey(group), fragments: this.#table(link, mapping, group.fragments), slots: run.slots });
    }
    return this.#agent.expectInbound(link.handle, ticket, groups);
  }

  async end(link: PeerLink, ticket: bigint): Promise<void> {
    return this.#agent.endInbound(link.handle, ticket);
  }

  /** A mapping, and with it its fragments, belongs to one peer. */
  #table(link: PeerLink, mapping: PeerMapping, fragments: readonly Fragment[]): FragmentTable {
    let table = this.#tables.get(fragments);
    if (table === undefined) {
      table = this.#agent.prepareInbound(link.handle, mapping.source, mapping.destination, fragments);
      this.#tables.set(fragments, table);
    }
    return table;
  }
}
