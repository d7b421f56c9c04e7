import type { TransferAgent } from '../agent/transfer-agent.js';
import { ProtocolError, ResourceError, StateError } from '../errors.js';

export const AUX_SLOT_BYTES = 512;
const HEADER_BYTES = 24;
const MAGIC = 0x5841564b; // 'KVAX'
const VERSION = 1;
/** Tokens of both kinds that fit one slot. */
export const AUX_MAX_TOKENS: number = (AUX_SLOT_BYTES - HEADER_BYTES) / 4;

/** What travels beside the pages when the generation server did not get it from the coordinator (generation first). */
export interface AuxContent {
  readonly firstTokens: readonly number[];
  readonly draftTokens: readonly number[];
  readonly promptLen: number;
  readonly cachedTokens: number;
}

/**
 * Role: registered host memory for aux, one slot per request.
 * Ownership: a slot belongs to one request from `allocate` to `free`; it is freed only when drained (I1).
 *
 * Slot, little endian:
 *   0      4         8            12           16          20             24
 *   +------+---------+------------+------------+-----------+--------------+-------------------------------+
 *   | KVAX | version | firstCount | draftCount | promptLen | cachedTokens | i32 first tokens, then draft  |
 *   +------+---------+------------+------------+-----------+--------------+-------------------------------+
 */
export class AuxBuffer {
  readonly #agent: TransferAgent;
  readonly #base: number;
  readonly #free: number[];
  readonly #inUse = new Set<number>();
  readonly #slotCount: number;

  /** `base` .. `base + slotCount * AUX_SLOT_BYTES` lies in a pool of `agent`. */
  constructor(agent: TransferAgent, base: number, slotCount: number) {
    this.#agent = agent;
    this.#base = base;
    this.#slotCount = slotCount;
    this.#free = Array.from({ length: slotCount }, (_, slot) => slot);
  }

  get slotCount(): number {
    return this.#slotCount;
  }

  get freeCount(): number {
    return this.#free.length;
  }

  /** @throws ResourceError when every slot is taken */
  allocate(): number {
    const slot = this.#free.shift();
    if (slot === undefined)
      throw new ResourceError(
        `all ${this.#slotCount} aux slots are in use: raise auxSlotCount or lower the concurrency`,
      );
    this.#inUse.add(slot);
    // A slot that was never written must not read as the previous request's.
    this.#agent.writeBytes(this.#base + slot * AUX_SLOT_BYTES, new Uint8Array(HEADER_BYTES));
    return slot;
  }

  /** @throws StateError for a slot that is not allocated */
  free(slot: number): void {
    if (!this.#inUse.delete(slot)) throw new StateError(`aux slot ${slot} is not allocated`);
    this.#free.push(slot);
  }

  /** @throws ResourceError when the tokens do not fit one slot */
  pack(slot: number, content: AuxContent): void {
    this.#requireAllocated(slot);
    const tokens = [...content.firstTokens, ...content.draftTokens];
    if (tokens.length > AUX_MAX_TOKENS)
      throw new ResourceError(`${tokens.length} first and draft tokens do not fit an aux slot of ${AUX_MAX_TOKENS}`);
    const bytes = new Uint8Array(HEADER_BYTES + tokens.length * 4);
    const view = new DataView(bytes.buffer);
    const header = [
      MAGIC,
      VERSION,
      content.firstTokens.length,
      content.draftTokens.length,
      content.promptLen,
      content.cachedTokens,
    ];
    header.forEach((word, index) => {
      view.setUint32(index * 4, word, true);
    });
    tokens.forEach((token, index) => {
      view.setInt32(HEADER_BYTES + index * 4, token, true);
    });
    this.#agent.writeBytes(this.#base + slot * AUX_SLOT_BYTES, bytes);
  }

  /** @throws ProtocolError when the slot does not hold aux content */
  unpack(slot: number): AuxContent {
    this.#requireAllocated(slot);
    const bytes = this.#agent.readBytes(this.#base + slot * AUX_SLOT_BYTES, AUX_SLOT_BYTES);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const word = (index: number): number => view.getUint32(index * 4, true);
    const firstCount = word(2);
    const draftCount = word(3);
    if (
      word(0) !== MAGIC ||
      word(1) !== VERSION ||
      firstCount > AUX_MAX_TOKENS ||
      draftCount > AUX_MAX_TOKENS - firstCount
    )
      throw new ProtocolError(`aux slot ${slot} does not hold aux content of version ${VERSION}`);
    const tokens = Array.from({ length: firstCount + draftCount }, (_, index) =>
      view.getInt32(HEADER_BYTES + index * 4, true),
    );
    return {
      firstTokens: tokens.slice(0, firstCount),
      draftTokens: tokens.slice(firstCount),
      promptLen: word(4),
      cachedTokens: word(5),
    };
  }

  #requireAllocated(slot: number): void {
    if (!this.#inUse.has(slot)) throw new StateError(`aux slot ${slot} is not allocated`);
  }
}
