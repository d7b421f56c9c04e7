import type { FragmentTable, InboundGroup, TransferAgent } from '../agent/transfer-agent.js';
import { InternalError, StateError } from '../errors.js';
import type { BlockRun } from '../geometry/block-run.js';
import type { Fragment, PeerMapping } from '../mapping/index.js';
import { PartedMap } from '../parted-map.js';
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
  /** By ticket: slots that may still be scattered into. */
  readonly #open = new PartedMap<bigint, PeerLink>();

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
    this.#open.set(ticket, link);
    return this.#agent.expectInbound(link.handle, ticket, groups);
  }

  /** Resolves once nothing is scattered under the ticket any more; at once for tickets that were never expected. */
  async end(ticket: bigint): Promise<void> {
    const link = this.#open.get(ticket);
    if (link === undefined) return;
    try {
      await this.#agent.endInbound(link.handle, ticket);
    } catch (cause) {
      // A closed agent scatters nothing either.
      if (!(cause instanceof StateError)) throw cause;
    }
    this.#open.delete(ticket);
  }

  /** Whether something may still be scattered under the ticket. */
  isOpen(ticket: bigint): boolean {
    return this.#open.has(ticket);
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
