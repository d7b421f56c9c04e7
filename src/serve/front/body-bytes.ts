import type { BodyShare } from './body-budget.js';
import { ApiError } from './openai-error.js';

/** Pieces that any body may come in; a list of token ids written one by one has no more for a model of that many tokens. */
export const FREE_PIECES = 4096;
/** What each piece beyond those must bring on average. */
export const PIECE_BYTES = 32;

export const BODY_FRAGMENTED = 'body_fragmented';

/**
 * Role: the bytes of one body while it comes, in one buffer.
 * Why: a piece that is kept costs a few hundred bytes however little it holds, and a client may send a body as pieces of one byte. So what is
 *   held is what is counted, and who sends thousands of such pieces is told.
 */
export class BodyBytes {
  readonly #mostBytes: number;
  readonly #share: BodyShare;
  #buffer = Buffer.alloc(0);
  #sizeBytes = 0;
  #pieces = 0;

  /**
   * @param mostBytes of the whole body
   * @param share grows with the buffer; its owner ends it
   */
  constructor(mostBytes: number, share: BodyShare) {
    this.#mostBytes = mostBytes;
    this.#share = share;
  }

  /** What has come. Shares its memory with the buffer. */
  get bytes(): Uint8Array {
    return this.#buffer.subarray(0, this.#sizeBytes);
  }

  /** @throws ApiError 413 for more than a body may have, 429 when other bodies have all the room, 400 for too many pieces */
  push(piece: Uint8Array): void {
    const sizeBytes = this.#sizeBytes + piece.length;
    if (sizeBytes > this.#mostBytes) throw bodyTooLarge(this.#mostBytes);
    this.#pieces += 1;
    if (this.#pieces > FREE_PIECES + sizeBytes / PIECE_BYTES)
      throw new ApiError(
        400,
        `the body came in ${this.#pieces} pieces of ${Math.round(sizeBytes / this.#pieces)} bytes on average; send larger chunks`,
        { code: BODY_FRAGMENTED },
      );
    if (sizeBytes > this.#buffer.length) this.#grow(sizeBytes);
    this.#buffer.set(piece, this.#sizeBytes);
    this.#sizeBytes = sizeBytes;
  }

  /** Twice what it was, so that each byte is copied a few times at most. */
  #grow(leastBytes: number): void {
    const capacityBytes = Math.min(this.#mostBytes, Math.max(leastBytes, 2 * this.#buffer.length));
    this.#share.grow(capacityBytes - this.#buffer.length);
    const grown = Buffer.allocUnsafeSlow(capacityBytes);
    grown.set(this.bytes);
    this.#buffer = grown;
  }
}

export function bodyTooLarge(limitBytes: number): ApiError {
  return new ApiError(413, `the body is larger than ${limitBytes} bytes (--max-body)`, { code: 'body_too_large' });
}
