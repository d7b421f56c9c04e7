import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import type { PageTable } from '../../../src/mapping/index.js';
import type { Choices } from './tiny-case.js';
import { groupPools, type TinyRankMemory } from './tiny-instance.js';

/** Ways in which one page of a received prompt can be wrong. */
export type Damage =
  /** The highest byte of one element of a key or a value. */
  | 'flipped byte'
  /** Two blocks in each other's place. */
  | 'swapped slots'
  /** A block holds what belongs one block earlier. */
  | 'shifted block'
  /** A block holds what was there before the transfer. */
  | 'stale page';

/** A page of a layer group over all its pools. */
type Page = readonly Uint8Array[];

/**
 * Role: spoils one page of each received prompt on one rank, after the transfer and before the first decode step reads it.
 * Only pages that the next token sees are spoiled: what has left a window may hold anything.
 */
export class PageDamage {
  readonly #damage: Damage;
  readonly #draw: Choices;
  /** The memory of all pages of the rank, as it was. */
  #before: Uint8Array = new Uint8Array(0);
  #memory: TinyRankMemory | null = null;
  readonly #spoiled = new Set<number>();
  enabled = false;
  /** Prompts that were spoiled. */
  count = 0;

  constructor(damage: Damage, draw: Choices) {
    this.#damage = damage;
    this.#draw = draw;
  }

  /** Notes what all pages hold now, as what they still hold should a write be lost. */
  remember(): void {
    const memory = this.#memory as TinyRankMemory;
    this.#before = memory.agent.readBytes(memory.base, memory.sizeBytes);
  }

  wrap(engine: ModelEngine, memory: TinyRankMemory): ModelEngine {
    if (memory.rank !== 0) return engine;
    this.#memory = memory;
    return {
      feedsItself: engine.feedsItself === true,
      forward: (batch: ScheduledBatch): Promise<ForwardResult> => {
        for (const { request } of batch.generation) this.#spoil(request, memory);
        return engine.forward(batch);
      },
    };
  }

  #spoil(request: LlmRequest, memory: TinyRankMemory): void {
    if (!this.enabled || this.#spoiled.has(request.id)) return;
    this.#spoiled.add(request.id);
    this.count += 1;
    const { cache } = memory;
    const { tokensPerBlock } = cache;
    const promptLen = request.promptTokens.length;
    // By group: whole blocks that the token at `promptLen` sees. A damage needs two of them.
    const visible = cache.layerGroups.map(({ windowSize }, group) => {
      const firstToken = windowSize === null ? 0 : Math.max(0, promptLen - windowSize + 1);
      const [begin, end] = [Math.ceil(firstToken / tokensPerBlock), Math.floor(promptLen / tokensPerBlock)];
      return { group, slots: cache.getBlockIdsRange(request.id, group, Math.min(begin, end), end).slots };
    });
    const { group, slots } = this.#draw.one(...visible.filter((run) => run.slots.length > 1));
    const at = this.#draw.pick(slots.length - 1);
    const [slot, next] = [slots[at] as number, slots[at + 1] as number];
    if (this.#damage === 'flipped byte') this.#flip(memory, group, slot);
    else if (this.#damage === 'stale page')
      this.#write(memory, group, slot, this.#read(memory, group, slot, this.#before));
    else {
      const [page, nextPage] = [this.#read(memory, group, slot), this.#read(memory, group, next)];
      this.#write(memory, group, next, page);
      if (this.#damage === 'swapped slots') this.#write(memory, group, slot, nextPage);
    }
  }

  #flip({ agent, table }: TinyRankMemory, group: number, slot: number): void {
    const view = this.#draw.one(...(table.layerGroups[group]?.views ?? []));
    const { pool, offset, bytes } = this.#draw.one(...view.layers);
    const { base, slotStride } = table.pools[pool] as PageTable['pools'][number];
    const elementBytes = view.dtype === 'float32' ? 4 : 2;
    const element = this.#draw.pick(bytes / elementBytes);
    const address = base + slot * slotStride + offset + (element + 1) * elementBytes - 1;
    agent.writeBytes(
      address,
      agent.readBytes(address, 1).map((byte) => byte ^ 0xff),
    );
  }

  #read({ agent, table, base }: TinyRankMemory, group: number, slot: number, from?: Uint8Array): Page {
    return groupPools(table, group).map((pool) => {
      const address = pool.base + slot * pool.slotStride;
      if (from === undefined) return agent.readBytes(address, pool.slotBytes);
      return from.slice(address - base, address - base + pool.slotBytes);
    });
  }

  #write({ agent, table }: TinyRankMemory, group: number, slot: number, page: Page): void {
    groupPools(table, group).forEach((pool, index) => {
      agent.writeBytes(pool.base + slot * pool.slotStride, page[index] as Uint8Array);
    });
  }
}
