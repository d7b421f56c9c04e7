import { describe, expect, it } from 'vitest';
import type { GemmStep } from '../../../src/agent/gemm-workload.js';
import { chainBlockHashes } from '../../../src/cache/block-hash.js';
import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import { createRequest } from '../../../src/executor/create-request.js';
import { GemmEngine } from '../../../src/executor/engines/gemm-engine.js';
import type { ScheduledBatch } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';

const TOKENS_PER_BLOCK = 4;

interface Queued {
  readonly chunk: number;
  readonly before: number;
  readonly tokens: readonly (readonly [number, number])[];
  end(error?: Error): void;
}

/** Products that end when the test says so. */
class ScriptedProducts {
  readonly queued: Queued[] = [];
  refuseAt = -1;

  async forward(
    chunk: number,
    before: number,
    jobs: readonly { tokenBegin: number; tokenEnd: number }[],
  ): Promise<GemmStep> {
    if (this.queued.length === this.refuseAt) throw new Error('refused');
    let end: Queued['end'] = () => {};
    const done = new Promise<void>((resolve, reject) => {
      end = (error) => (error === undefined ? resolve() : reject(error));
    });
    done.catch(() => {});
    this.queued.push({ chunk, before, tokens: jobs.map((job) => [job.tokenBegin, job.tokenEnd] as const), end });
    return { event: { number: this.queued.length } as unknown as GemmStep['event'], bytesWritten: 0, done };
  }
}

function setUp() {
  const products = new ScriptedProducts();
  const cache = new GrowingCacheManager({
    tokensPerBlock: TOKENS_PER_BLOCK,
    layerGroups: [
      { kind: 'attention', windowSize: null, tokensPerBlock: TOKENS_PER_BLOCK, layers: [0], slotCount: 64 },
    ],
    seed: 1,
  });
  const engine = new GemmEngine({
    products,
    cache,
    pageTable: { pools: [], layerGroups: [], aux: null },
    content: { chainTokenSeeds: (tokens) => BigUint64Array.from(tokens, (token) => BigInt(token)) },
  });
  const request = (id: number): LlmRequest => {
    const made = createRequest({ id, promptTokens: Uint32Array.from({ length: 16 }, (_, i) => i + id), maxTokens: 1 });
    cache.addRequest(id, { promptLen: 16, blockHashes: chainBlockHashes(made.promptTokens, TOKENS_PER_BLOCK) });
    expect(cache.ensureCapacity(id, 16)).toBe(true);
    return made;
  };
  return { products, engine, request };
}

const chunk = (request: LlmRequest, chunkStart: number, chunkEnd: number): ScheduledBatch => ({
  context: [{ request, chunkStart, chunkEnd }],
  generation: [],
});

describe('GemmEngine', () => {
  it('resolves when the work is enqueued, with the event of the last product, and has tokens when it has ended', async () => {
    const { products, engine, request } = setUp();
    const one = request(1);
    const first = await engine.forward(chunk(one, 0, 8));
    const last = await engine.forward(chunk(one, 8, 16));
    expect(products.queued.map(({ chunk: tokens, before, tokens: pages }) => ({ tokens, before, pages }))).toEqual([
      { tokens: 8, before: 0, pages: [[0, 8]] },
      { tokens: 8, before: 8, pages: [[8, 16]] },
    ]);
    expect(last.event).toEqual({ number: 2 });
    let hasTokens = false;
    void last.tokens.then(() => (hasTokens = true));
    products.queued[0]?.end();
    expect((await first.tokens).size).toBe(0);
    expect(hasTokens).toBe(false);
    products.queued[1]?.end();
    expect([...(await last.tokens).keys()]).toEqual([one]);
  });

  it('rejects the tokens of a forward that the GPU failed, and goes on', async () => {
    const { products, engine, request } = setUp();
    const failed = await engine.forward(chunk(request(1), 0, 16));
    products.queued[0]?.end(new Error('the device was lost'));
    await expect(failed.tokens).rejects.toThrow('the device was lost');
    const next = await engine.forward(chunk(request(2), 0, 16));
    products.queued[1]?.end();
    expect((await next.tokens).size).toBe(1);
  });

  it('a batch that is refused in its middle rejects only when what was enqueued has ended', async () => {
    const { products, engine, request } = setUp();
    products.refuseAt = 1;
    const [one, two] = [request(1), request(2)];
    const batch = {
      context: [one, two].map((request_) => ({ request: request_, chunkStart: 0, chunkEnd: 16 })),
      generation: [],
    };
    let refused = false;
    const forward = engine.forward(batch).catch((error: Error) => {
      refused = true;
      return error.message;
    });
    while (products.queued.length === 0) await Promise.resolve();
    for (let turn = 0; turn < 20; turn++) await Promise.resolve();
    expect(refused).toBe(false);
    products.queued[0]?.end();
    expect(await forward).toBe('refused');
  });

  it('decode steps need no products', async () => {
    const { products, engine, request } = setUp();
    const one = request(1);
    const { event, tokens } = await engine.forward({
      context: [],
      generation: [{ request: one, chunkStart: 16, chunkEnd: 16 }],
    });
    expect(event).toBeNull();
    expect((await tokens).size).toBe(1);
    expect(products.queued).toHaveLength(0);
  });
});
