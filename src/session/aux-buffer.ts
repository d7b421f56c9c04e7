import type { TransferAgent } from '../agent/transfer-agent.js';
import { ProtocolError, ResourceError, StateError } from '../errors.js';
import type { ContextAnswer } from '../executor/request.js';

export const AUX_SLOT_BYTES = 512;
const HEADER_BYTES = 28;
const MAGIC = 0x5841564b; // 'KVAX'
const VERSION = 2;
/** Tokens of both kinds and log-probs that fit one slot. */
export const AUX_MAX_TOKENS: number = (AUX_SLOT_BYTES - HEADER_BYTES) / 4;

/** What travels beside the pages when the generation server did not get it from the coordinator (generation first). */
export type AuxContent = ContextAnswer;

/**
 * Role: registered host memory for aux, one slot per request.
 * Ownership: a slot belongs to one request from `allocate` to `free`; it is freed only when drained (I1).
 *
 * Slot, little endian:
 *   0      4         8            12           16          20             24             28
 *   +------+---------+------------+------------+-----------+--------------+--------------+-----------------------------------------+
 *   | KVAX | version | firstCount | draftCount | promptLen | cachedTokens | logProbCount | u32 first, u32 draft tokens, f32 logs   |
 *   +------+---------+------------+------------+-----------+--------------+--------------+-----------------------------------------+
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

  /** @throws ResourceError when tokens and log-probs do not fit one slot */
  pack(slot: number, content: AuxContent): void {
    this.#requireAllocated(slot);
    const { firstLogProbs } = content;
    const tokens = [...content.firstTokens, ...content.draftTokens];
    const count = tokens.length + firstLogProbs.length;
    if (count > AUX_MAX_TOKENS) {
      const what = `${tokens.length} first and draft tokens with ${firstLogProbs.length} log-probs`;
      throw new ResourceError(`${what} do not fit an aux slot of ${AUX_MAX_TOKENS}: send fewer draft tokens`);
    }
    const bytes = new Uint8Array(HEADER_BYTES + count * 4);
    const view = new DataView(bytes.buffer);
    const header = [
      MAGIC,
      VERSION,
      content.firstTokens.length,
      content.draftTokens.length,
      content.promptLen,
      content.cachedTokens,
      firstLogProbs.length,
    ];
    header.forEach((word, index) => {
      view.setUint32(index * 4, word, true);
    });
    tokens.forEach((token, index) => {
      view.setUint32(HEADER_BYTES + index * 4, token, true);
    });
    firstLogProbs.forEach((logProb, index) => {
      view.setFloat32(HEADER_BYTES + (tokens.length + index) * 4, logProb, true);
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
    const logProbCount = word(6);
    // Words of 32 bits: their sum is exact.
    const isWhole = firstCount + draftCount + logProbCount <= AUX_MAX_TOKENS;
    if (word(0) !== MAGIC || word(1) !== VERSION || !isWhole)
      throw new ProtocolError(`aux slot ${slot} does not hold aux content of version ${VERSION}`);
    const tokenCount = firstCount + draftCount;
    const tokens = Array.from({ length: tokenCount }, (_, index) => view.getUint32(HEADER_BYTES + index * 4, true));
    const firstLogProbs = Array.from({ length: logProbCount }, (_, index) =>
      view.getFloat32(HEADER_BYTES + (tokenCount + index) * 4, true),
    );
    return {
      firstTokens: tokens.slice(0, firstCount),
      firstLogProbs,
      draftTokens: tokens.slice(firstCount),
      promptLen: word(4),
      cachedTokens: word(5),
    };
  }

  #requireAllocated(slot: number): void {
    if (!this.#inUse.has(slot)) throw new StateError(`aux slot ${slot} is not allocated`);
  }
}
