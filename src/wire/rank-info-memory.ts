import type { RankInfo } from '../mapping/rank-info.js';

const MAX_INFOS = 32;
/** Of one that is kept; a larger page table is read again each time. What is kept in all is some megabytes, whoever sent it. */
const MAX_KEPT_BYTES = 16 * 1024;

/**
 * Role: the rank infos that were read last, by the bytes that they came in.
 * Why: a rank says the same of itself in HELLO, HELLO_ACK, probes and repeats, and checking its page table costs more than all the rest of them.
 * Ownership: a RankInfo is not changed by anybody, so whoever reads the same bytes may have the same object.
 * Invariant: only what was read and found valid is in here, so that equal bytes are valid.
 */
export class RankInfoMemory {
  /** The one used last comes last. */
  readonly #infos = new Map<string, RankInfo>();

  find(bytes: Uint8Array): RankInfo | null {
    if (bytes.length > MAX_KEPT_BYTES) return null;
    const key = keyOf(bytes);
    const info = this.#infos.get(key);
    if (info === undefined) return null;
    this.#infos.delete(key);
    this.#infos.set(key, info);
    return info;
  }

  keep(bytes: Uint8Array, info: RankInfo): void {
    if (bytes.length > MAX_KEPT_BYTES) return;
    this.#infos.set(keyOf(bytes), info);
    if (this.#infos.size <= MAX_INFOS) return;
    for (const oldest of this.#infos.keys()) {
      this.#infos.delete(oldest);
      return;
    }
  }
}

/** Latin 1 gives each byte a character of its own. */
function keyOf(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('latin1');
}
