import { hash } from 'node:crypto';

const DIGEST_BYTES = 32;

/**
 * Chained SHA-256 of each full block of a prompt: entry `i` names the content of blocks `0..i`, so equal entries mean equal prefixes.
 * A cryptographic hash, because the prompts of different users meet in one cache.
 */
export function hashPromptBlocks(tokens: Uint32Array, tokensPerBlock: number): readonly string[] {
  const hashes: string[] = [];
  const input = Buffer.alloc(DIGEST_BYTES + tokensPerBlock * 4);
  const block = new Uint32Array(tokensPerBlock);
  const blockBytes = Buffer.from(block.buffer);
  for (let begin = 0; begin + tokensPerBlock <= tokens.length; begin += tokensPerBlock) {
    block.set(tokens.subarray(begin, begin + tokensPerBlock));
    blockBytes.copy(input, DIGEST_BYTES);
    const digest = hash('sha256', input, 'hex');
    input.write(digest, 0, 'hex');
    hashes.push(digest);
  }
  return hashes;
}
