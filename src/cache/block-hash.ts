import { hash } from 'node:crypto';
import { ArgumentError } from '../errors.js';

/** 128 bits in hex. */
const HASH_LENGTH = 32;
const { latin1Slice } = Buffer.prototype as unknown as {
  latin1Slice(this: Uint8Array, begin: number, end: number): string;
};

/**
 * Role: the chain of `chainBlockHashes`, as far as it was asked for: 131,072 tokens cost 2 to 10 ms, which others need not wait for.
 * Why SHA-256, truncated to 128 bits: prompts come from users, and a collision that could be made would serve one user's cache to another.
 */
export class BlockHashChain {
  readonly #bytes: Buffer;
  readonly #blockBytes: number;
  readonly #hashes: string[] = [];
  /** The hash before, and the block. */
  #link: Buffer;
  #previousBytes: number;
  #end = 0;

  /** @throws ArgumentError for a block size that is not a positive integer */
  constructor(tokens: Uint32Array, tokensPerBlock: number, rootHash = '') {
    if (!Number.isSafeInteger(tokensPerBlock) || tokensPerBlock < 1) {
      throw new ArgumentError(`tokensPerBlock must be a positive integer, got ${String(tokensPerBlock)}`);
    }
    this.#bytes = Buffer.from(tokens.buffer, tokens.byteOffset, tokens.byteLength);
    this.#blockBytes = tokensPerBlock * Uint32Array.BYTES_PER_ELEMENT;
    this.#previousBytes = Buffer.byteLength(rootHash, 'utf8');
    this.#link = Buffer.alloc(this.#previousBytes + this.#blockBytes);
    this.#link.write(rootHash, 'utf8');
  }

  /** Of the blocks so far. */
  get hashes(): readonly string[] {
    return this.#hashes;
  }

  /** Goes on for at most so many blocks. @returns true when the chain is complete */
  advance(blocks: number): boolean {
    for (let done = 0; done < blocks && this.#end + this.#blockBytes <= this.#bytes.length; done++) {
      const begin = this.#end;
      this.#end += this.#blockBytes;
      this.#bytes.copy(this.#link, this.#previousBytes, begin, this.#end);
      const digest = hash('sha256', this.#link, 'hex');
      if (this.#hashes.length === 0) {
        this.#previousBytes = HASH_LENGTH;
        this.#link = Buffer.alloc(HASH_LENGTH + this.#blockBytes);
      }
      this.#link.write(digest, 0, HASH_LENGTH, 'latin1');
      // Read back: a part of the digest would keep all of it, and maps find such strings several times as slowly.
      this.#hashes.push(latin1Slice.call(this.#link, 0, HASH_LENGTH));
    }
    return this.#end + this.#blockBytes > this.#bytes.length;
  }
}

/**
 * One hash per full block; each covers its block and everything before it, so that equal hash = equal prefix content.
 *
 * @param tokens the prompt
 * @param rootHash what else the content depends on (adapter, tenant); give the same to `CachePrompt.rootHash`. Default ''
 * @returns `floor(tokens.length / tokensPerBlock)` hex strings of 32 characters
 * @throws ArgumentError for a block size that is not a positive integer
 * @example chainBlockHashes(Uint32Array.of(1, 2, 3, 4, 5), 2).length // 2
 */
export function chainBlockHashes(tokens: Uint32Array, tokensPerBlock: number, rootHash = ''): string[] {
  const chain = new BlockHashChain(tokens, tokensPerBlock, rootHash);
  chain.advance(Infinity);
  return [...chain.hashes];
}
