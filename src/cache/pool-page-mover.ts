import type { ByteCopy, MemoryStretch, PageCopier } from '../agent/page-copier.js';
import type { ReadyEvent, TransferAgent } from '../agent/transfer-agent.js';
import { ArgumentError, StateError } from '../errors.js';
import type { PagePool, PageTable } from '../mapping/page-table.js';
import type { LayerGroup } from './kv-cache-manager.js';
import type { PageMove, PageMover, PagesReady } from './page-mover.js';

/** What `PoolPageMover.open` needs; all parts stay their owner's and outlive the moves. */
export interface PageMoverMemory {
  /** Owner of the pools; the host tier is allocated from it. */
  readonly agent: Pick<TransferAgent, 'allocatePool' | 'createEvent'>;
  readonly copier: PageCopier;
  /** The pools at their real addresses, as `openTransceiver` gives them. */
  readonly pageTable: PageTable;
  /** The cache manager's, in its order. */
  readonly layerGroups: readonly LayerGroup[];
}

/** A million tokens are millions of copies: so many are described, and handed over, in one turn of the event loop. */
const COPIES_AT_ONCE = 2048;

/** One pool of a layer group and what is kept of it in host memory. */
interface TieredPool {
  readonly slotBytes: number;
  readonly slotStride: number;
  readonly device: number;
  /** -1: the group has no host slots. */
  readonly host: number;
}

/** Batches that fail together. */
interface Chain {
  tail: Promise<void>;
}

/**
 * Role: the PageMover of an engine whose pages lie in an agent's pools, in host or device memory: saves pages to host memory, brings them back,
 *   copies them.
 * Why two phases: the cache manager needs its mover before there are pools.
 * Ordering: batches run one after another. Each has an event that this side settles, so that whatever waits for it natively (an early prefix)
 *   waits in the progress thread, alone, and never in a queue of the device that other transfers share.
 * Failure: a batch that fails takes those with it that were handed over before its failure was known.
 *
 * @example
 * const mover = new PoolPageMover();
 * const cache = new GrowingCacheManager({ tokensPerBlock, layerGroups, mover, partialReuse: true });
 * const { transceiver, pageTable } = await openTransceiver({ ...parts, agent, cache });
 * await mover.open({ agent, copier: new NativePageCopier(), pageTable, layerGroups });
 */
export class PoolPageMover implements PageMover {
  #memory: PageMoverMemory | null = null;
  #stretches: MemoryStretch[] = [];
  /** By layer group. */
  #pools: readonly (readonly TieredPool[])[] = [];
  #chain: Chain = { tail: Promise.resolve() };

  /**
   * Allocates the host tier: `hostSlotCount` pages of each layer group. Once, before the first request.
   * @throws ArgumentError when the page table is not that of the layer groups
   * @throws ResourceError when the host tier cannot be allocated
   * @throws StateError when it is open
   */
  async open(memory: PageMoverMemory): Promise<void> {
    if (this.#memory !== null) throw new StateError('the page mover is open already');
    const { agent, pageTable, layerGroups } = memory;
    if (pageTable.layerGroups.length !== layerGroups.length) {
      throw new ArgumentError(
        `the page table has ${pageTable.layerGroups.length} layer groups, the cache manager has ${layerGroups.length}`,
      );
    }
    const stretches: MemoryStretch[] = [];
    const groups: TieredPool[][] = [];
    for (const [index, { slotCount, hostSlotCount = 0 }] of layerGroups.entries()) {
      const pools: TieredPool[] = [];
      for (const pool of poolsOf(pageTable, index)) {
        if (pool.slotCount !== slotCount) {
          throw new ArgumentError(`layer group ${index} has ${slotCount} slots, its pool has ${pool.slotCount}`);
        }
        const { base, slotBytes, slotStride } = pool;
        const device = stretches.push({ base, sizeBytes: (slotCount - 1) * slotStride + slotBytes }) - 1;
        const host = hostSlotCount === 0 ? -1 : stretches.push(await hostTier(agent, hostSlotCount * slotBytes)) - 1;
        pools.push({ slotBytes, slotStride, device, host });
      }
      groups.push(pools);
    }
    this.#stretches = stretches;
    this.#pools = groups;
    this.#memory = memory;
  }

  /** @throws StateError before `open` */
  move(moves: readonly PageMove[]): PagesReady {
    if (this.#memory === null)
      throw new StateError('the page mover has no pools yet: call open() before the first request');
    const { agent, copier } = this.#memory;
    const event = agent.createEvent();
    const chain = this.#chain;
    const done = chain.tail.then(() => this.#copyAll(copier, moves));
    const settled = done.then(
      () => event.signal(),
      (error: unknown) => {
        // What is handed over from now on has heard of it.
        if (this.#chain === chain) this.#chain = { tail: Promise.resolve() };
        fail(event, error);
        throw error;
      },
    );
    chain.tail = settled;
    // Whoever only wants the event has no reason to look at the promise.
    settled.catch(() => {});
    return { event, done: settled };
  }

  async #copyAll(copier: PageCopier, moves: readonly PageMove[]): Promise<void> {
    let copies: ByteCopy[] = [];
    for (const [index, move] of moves.entries()) {
      copies.push(...this.#copiesOf(move));
      if (copies.length < COPIES_AT_ONCE && index + 1 < moves.length) continue;
      await copier.copy(this.#stretches, copies);
      copies = [];
    }
  }

  #copiesOf(move: PageMove): ByteCopy[] {
    return (this.#pools[move.group] ?? []).map((pool) => {
      const { slotBytes: bytes, slotStride } = pool;
      const onDevice = (slot: number) => ({ stretch: pool.device, offset: slot * slotStride });
      const onHost = (slot: number) => ({ stretch: pool.host, offset: slot * bytes });
      const [from, to] =
        move.kind === 'offload'
          ? [onDevice(move.slot), onHost(move.hostSlot)]
          : move.kind === 'onboard'
            ? [onHost(move.hostSlot), onDevice(move.slot)]
            : [onDevice(move.fromSlot), onDevice(move.toSlot)];
      return { fromStretch: from.stretch, fromOffset: from.offset, toStretch: to.stretch, toOffset: to.offset, bytes };
    });
  }
}

async function hostTier(agent: PageMoverMemory['agent'], sizeBytes: number): Promise<MemoryStretch> {
  const { base } = await agent.allocatePool({ sizeBytes });
  return { base, sizeBytes };
}

/** The pools that hold pages of a layer group, each once. */
function poolsOf({ pools, layerGroups }: PageTable, group: number): readonly PagePool[] {
  const indexes = new Set(layerGroups[group]?.views.flatMap(({ layers }) => layers.map(({ pool }) => pool)));
  return [...indexes].map((index) => pools[index] as PagePool);
}

function fail(event: ReadyEvent, error: unknown): void {
  event.fail(error instanceof Error ? error.message : String(error));
}
