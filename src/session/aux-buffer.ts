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
  /** What was read last; nothing of it is kept. */
  readonly #read = new Uint8Array(AUX_SLOT_BYTES);
  readonly #words = new DataView(this.#read.buffer);
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
    const content = this.#look(slot);
    if (content === null) throw new ProtocolError(`aux slot ${slot} does not hold aux content of version ${VERSION}`);
    return content;
  }

  /**
   * Somebody will soon wait for `unpack`: what it runs is then in the caches. What the slot holds meanwhile, a part of a content that is on
   * its way perhaps, is nobody's to see.
   */
  warm(slot: number): void {
    if (this.#inUse.has(slot)) this.#look(slot);
  }

  #look(slot: number): AuxContent | null {
    this.#requireAllocated(slot);
    const address = this.#base + slot * AUX_SLOT_BYTES;
    if (this.#agent.readInto === undefined) this.#read.set(this.#agent.readBytes(address, AUX_SLOT_BYTES));
    else this.#agent.readInto(address, this.#read);
    const firstCount = this.#word(2);
    const draftCount = this.#word(3);
    if (
      this.#word(0) !== MAGIC ||
      this.#word(1) !== VERSION ||
      firstCount > AUX_MAX_TOKENS ||
      draftCount > AUX_MAX_TOKENS - firstCount
    )
      return null;
    return {
      firstTokens: this.#tokens(0, firstCount),
      draftTokens: this.#tokens(firstCount, draftCount),
      promptLen: this.#word(4),
      cachedTokens: this.#word(5),
    };
  }

  #word(index: number): number {
    return this.#words.getUint32(index * 4, true);
  }

  #tokens(from: number, count: number): number[] {
    const tokens: number[] = [];
    for (let i = 0; i < count; i++) tokens.push(this.#words.getInt32(HEADER_BYTES + (from + i) * 4, true));
    return tokens;
  }

  #requireAllocated(slot: number): void {
    if (!this.#inUse.has(slot)) throw new StateError(`aux slot ${slot} is not allocated`);
  }
}
