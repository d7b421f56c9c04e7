import type { TransferAgent } from '../agent/transfer-agent.js';
import { ProtocolError, ResourceError, StateError } from '../errors.js';
import type { ContextAnswer } from '../executor/request.js';
import { AUX_LAYOUT } from '../mapping/page-table.js';
import { ByteWriter } from '../wire/byte-writer.js';

export const AUX_SLOT_BYTES = 512;
const HEADER_BYTES = 28;
const NO_HEADER = new Uint8Array(HEADER_BYTES);
const MAGIC = 0x5841564b; // 'KVAX'
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
    this.#agent.writeBytes(this.#base + slot * AUX_SLOT_BYTES, NO_HEADER);
    return slot;
  }

  /** @throws StateError for a slot that is not allocated */
  free(slot: number): void {
    if (!this.#inUse.delete(slot)) throw new StateError(`aux slot ${slot} is not allocated`);
    this.#free.push(slot);
  }

  /**
   * @throws ResourceError when tokens and log-probs do not fit one slot
   * @throws ArgumentError for a number that its field cannot hold: it would arrive as another one
   */
  pack(slot: number, content: AuxContent): void {
    this.#requireAllocated(slot);
    const { firstLogProbs } = content;
    const tokens = [...content.firstTokens, ...content.draftTokens];
    const count = tokens.length + firstLogProbs.length;
    if (count > AUX_MAX_TOKENS) {
      const what = `${tokens.length} first and draft tokens with ${firstLogProbs.length} log-probs`;
      throw new ResourceError(`${what} do not fit an aux slot of ${AUX_MAX_TOKENS}: send fewer draft tokens`);
    }
    const writer = new ByteWriter(HEADER_BYTES + count * 4);
    writer.u32(MAGIC, 'magic');
    writer.u32(AUX_LAYOUT, 'version');
    writer.u32(content.firstTokens.length, 'firstCount');
    writer.u32(content.draftTokens.length, 'draftCount');
    writer.u32(content.promptLen, 'promptLen');
    writer.u32(content.cachedTokens, 'cachedTokens');
    writer.u32(firstLogProbs.length, 'logProbCount');
    for (const token of tokens) writer.u32(token, 'a token');
    for (const logProb of firstLogProbs) writer.f32(logProb, 'a log-prob');
    this.#agent.writeBytes(this.#base + slot * AUX_SLOT_BYTES, writer.finish());
  }

  /** @throws ProtocolError when the slot does not hold aux content */
  unpack(slot: number): AuxContent {
    const content = this.#look(slot);
    if (content === null)
      throw new ProtocolError(`aux slot ${slot} does not hold aux content of version ${AUX_LAYOUT}`);
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
    const logProbCount = this.#word(6);
    // Words of 32 bits: their sum is exact.
    const isWhole = firstCount + draftCount + logProbCount <= AUX_MAX_TOKENS;
    if (this.#word(0) !== MAGIC || this.#word(1) !== AUX_LAYOUT || !isWhole) return null;
    return {
      firstTokens: this.#tokens(0, firstCount),
      firstLogProbs: this.#logProbs(firstCount + draftCount, logProbCount),
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
    for (let i = 0; i < count; i++) tokens.push(this.#words.getUint32(HEADER_BYTES + (from + i) * 4, true));
    return tokens;
  }

  #logProbs(from: number, count: number): number[] {
    const logs: number[] = [];
    for (let i = 0; i < count; i++) logs.push(this.#words.getFloat32(HEADER_BYTES + (from + i) * 4, true));
    return logs;
  }

  #requireAllocated(slot: number): void {
    if (!this.#inUse.has(slot)) throw new StateError(`aux slot ${slot} is not allocated`);
  }
}
