import { createHash } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { BlockHashChain, chainBlockHashes } from '../../../src/cache/block-hash.js';
import { SystemClock } from '../../../src/clock.js';
import { createRequest } from '../../../src/executor/create-request.js';
import { Executor } from '../../../src/executor/executor.js';
import { PromptContents } from '../../../src/executor/prompt-contents.js';
import { TurnBudget } from '../../../src/turn-budget.js';
import { TurnLog } from '../../support/turn-log.js';
import { FakeCache } from './fake-cache.js';
import { FakeEngine } from './fake-engine.js';
import { FakeTransceiver } from './fake-transceiver.js';

const TPB = 16;
const tokensOf = (length: number): Uint32Array =>
  Uint32Array.from({ length }, (_, index) => (index * 2654435761) >>> 0);

/** As the rule is written: SHA-256 over the hash before and the block's tokens, the first 128 bits. */
function byTheRule(tokens: Uint32Array, tokensPerBlock: number, rootHash: string): string[] {
  const hashes: string[] = [];
  let previous = rootHash;
  for (let end = tokensPerBlock; end <= tokens.length; end += tokensPerBlock) {
    const block = new Uint8Array(tokens.slice(end - tokensPerBlock, end).buffer);
    previous = createHash('sha256').update(previous, 'utf8').update(block).digest('hex').slice(0, 32);
    hashes.push(previous);
  }
  return hashes;
}

describe('the names of blocks', () => {
  it.each([
    ['', 0],
    ['', 1000],
    ['tenant-ä/adapter', 333],
    ['x'.repeat(500), 64],
  ])('follow the rule, root %j, %i tokens', (rootHash, length) => {
    const tokens = tokensOf(length);
    expect(chainBlockHashes(tokens, TPB, rootHash)).toEqual(byTheRule(tokens, TPB, rootHash));
    // Part of a larger buffer, and whatever the portions.
    const within = new Uint32Array([7, 7, 7, ...tokens, 9]).subarray(3, 3 + length);
    const chain = new BlockHashChain(within, TPB, rootHash);
    while (!chain.advance(3));
    expect(chain.hashes).toEqual(byTheRule(tokens, TPB, rootHash));
    expect(chain.advance(5)).toBe(true);
  });
});

describe('PromptContents', () => {
  const contents = (): PromptContents =>
    new PromptContents({ tokensPerBlock: TPB, turns: new TurnBudget(new SystemClock()), blockHashesOf: null });

  it('names a short prompt at once, and a long one in portions', async () => {
    const [short, long] = [31 * TPB, 40_000 * TPB].map((length, id) =>
      createRequest({ id: id + 1, promptTokens: tokensOf(length), maxTokens: 1 }),
    ) as [ReturnType<typeof createRequest>, ReturnType<typeof createRequest>];
    const named = contents();
    expect(named.prepare(short)).toBeNull();
    const log = new TurnLog<string>();
    const preparing = named.prepare(long);
    expect(preparing).toBeInstanceOf(Promise);
    await preparing;
    log.stop();
    // 20 ms of work or more in portions of one.
    expect(log.turn).toBeGreaterThan(5);
    for (const request of [short, long]) {
      const { blockHashes, tokens } = named.take(request);
      expect(blockHashes).toEqual(chainBlockHashes(request.promptTokens, TPB));
      expect(tokens).toBe(request.promptTokens);
    }
    expect(named.prepare(long)).toBeNull();
  });

  it("takes a caller's names instead, without the tokens, which they may not cover", () => {
    const request = createRequest({ id: 1, promptTokens: tokensOf(40_000 * TPB), maxTokens: 1 });
    const turns = new TurnBudget(new SystemClock());
    const named = new PromptContents({ tokensPerBlock: TPB, turns, blockHashesOf: ({ id }) => [`own-${id}`] });
    expect(named.prepare(request)).toBeNull();
    expect(named.take(request)).toEqual({ blockHashes: ['own-1'] });
  });

  it('holds up nobody in an executor: a prompt that is cancelled while it is named ends, the others run', async () => {
    const log: string[] = [];
    const cache = new FakeCache(log, { tokensPerBlock: TPB, slotCount: 100_000 });
    const executor = new Executor({
      clock: new SystemClock(),
      cache,
      transceiver: new FakeTransceiver(log),
      engine: new FakeEngine(log),
      limits: { chunkTokens: 1 << 20, tokenBudget: 1 << 21, maxTokensInBuffer: null },
    });
    const outcomes = new Map<number, string>();
    const ended = (id: number): Promise<void> =>
      new Promise((resolve) => {
        const [blocks, maxTokens] = id === 2 ? [40_000, 100] : [2, 1];
        executor.submit(createRequest({ id, promptTokens: tokensOf(blocks * TPB), maxTokens }), {
          onFinished: (_, outcome) => {
            outcomes.set(id, outcome);
            resolve();
          },
        });
      });
    const all = Promise.all([1, 2, 3].map(ended));
    // 40,000 blocks are named over a hundred turns; named in one, the first step would be out by then.
    for (let turn = 0; turn < 6; turn++) await new Promise(setImmediate);
    expect(executor.stats().steps).toBe(0);
    expect(executor.cancel(2)).toBe(true);
    await all;
    expect(Object.fromEntries(outcomes)).toEqual({ 1: 'completed', 2: 'cancelled', 3: 'completed' });
    await executor.close();
  });
});
