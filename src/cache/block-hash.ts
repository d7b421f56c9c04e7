import { createHash } from 'node:crypto';
import { ArgumentError } from '../errors.js';

/** 128 bits in hex. */
const HASH_LENGTH = 32;

/**
 * One hash per full block; each covers its block and everything before it, so that equal hash = equal prefix content.
 * SHA-256 chain, truncated to 128 bits: prompts come from users, and a collision that could be made would serve one user's cache to
 * another.
 *
 * @param tokens the prompt
 * @param rootHash what else the content depends on (adapter, tenant); give the same to `CachePrompt.rootHash`. Default ''
 * @returns `floor(tokens.length / tokensPerBlock)` hex strings of 32 characters
 * @throws ArgumentError for a block size that is not a positive integer
 * @example chainBlockHashes(Uint32Array.of(1, 2, 3, 4, 5), 2).length // 2
 */
export function chainBlockHashes(tokens: Uint32Array, tokensPerBlock: number, rootHash = ''): string[] {
  if (!Number.isSafeInteger(tokensPerBlock) || tokensPerBlock < 1) {
    throw new ArgumentError(`tokensPerBlock must be a positive integer, got ${String(tokensPerBlock)}`);
  }
  const bytes = Buffer.from(tokens.buffer, tokens.byteOffset, tokens.byteLength);
  const blockBytes = tokensPerBlock * Uint32Array.BYTES_PER_ELEMENT;
  const hashes: string[] = [];
  let previous = rootHash;
  for (let end = blockBytes; end <= bytes.length; end += blockBytes) {
    const digest = createHash('sha256')
      .update(previous, 'utf8')
      .update(bytes.subarray(end - blockBytes, end));
    previous = digest.digest('hex').slice(0, HASH_LENGTH);
    hashes.push(previous);
  }
  return hashes;
}
