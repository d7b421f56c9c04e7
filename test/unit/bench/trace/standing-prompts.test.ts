import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { chainBlockHashes } from '../../../../src/cache/block-hash.js';
import { GrowingCacheManager } from '../../../../src/cache/growing-cache-manager.js';
import { presetNamed } from '../../../../src/cli/bench/presets/index.js';
import { promptTokens } from '../../../../src/cli/bench/prompt-source.js';
import { readTrace, type TraceRequest } from '../../../../src/cli/bench/request-trace.js';
import { shapesOf } from '../../../../src/cli/bench/shape/shapes-of.js';
import { scaleTrace } from '../../../../src/cli/bench/trace/scaled-trace.js';
import type { StandingPrompt } from '../../../../src/cli/bench/trace/standing-prompts.js';
import { checkTraceOptions, TRACE_OPTIONS } from '../../../../src/cli/bench/trace/trace-options.js';
import { planGroups } from '../../../../src/cli/bench/trace/trace-plan.js';
import { restorePrompt } from '../../../../src/cli/bench/ttft/warm-prefix.js';
import type { PlannedRequest, RequestGroup } from '../../../../src/cli/bench/ttft/workload.js';
import { readOptions } from '../../../../src/cli/options.js';
import { seededRandom } from '../../../sim-lite/seeded-random.js';
import { PlainLru } from './plain-lru.js';

const SCALE = 1 / 64;
const CONVERSATIONS = fileURLToPath(new URL('../../../data/traces/conversation-300.jsonl', import.meta.url));

/** Users who come back with a longer prompt, some of them much later. */
function returningUsers(count: number): readonly TraceRequest[] {
  const random = seededRandom(7);
  const users = Array.from({ length: 40 }, (_, user) => ({ ids: [1, 1000 + user] }));
  let nextId = 10_000;
  return Array.from({ length: count }, (_, index) => {
    const user = users[Math.floor(random() ** 2 * users.length)] as (typeof users)[number];
    const ids = [...user.ids, nextId++];
    user.ids = ids.length > 12 ? ids.slice(0, 3) : ids;
    const inputTokens = 512 * (ids.length - 1) + 1 + Math.floor(random() * 512);
    return { timestampMs: 100 * index, inputTokens, outputTokens: 8, hashIds: ids };
  });
}

function groupsOf(trace: readonly TraceRequest[], ...args: readonly string[]): readonly RequestGroup[] {
  const options = readOptions(TRACE_OPTIONS, args);
  checkTraceOptions(options, args);
  return planGroups(options, shapesOf(options, presetNamed(options.model)), scaleTrace(trace, 1, SCALE));
}

/** The context server's cache of a run, without the server. */
class OneCache {
  readonly #cache: GrowingCacheManager;
  readonly #blockTokens: number;
  readonly #slotCount: number;
  #nextId = 1;

  constructor(slotCount: number, blockTokens: number) {
    this.#blockTokens = blockTokens;
    this.#slotCount = slotCount;
    const group = { kind: 'attention' as const, windowSize: null, layers: [0], tokensPerBlock: blockTokens, slotCount };
    this.#cache = new GrowingCacheManager({ tokensPerBlock: blockTokens, layerGroups: [group], seed: 1 });
  }

  async restore(prompts: readonly StandingPrompt[]): Promise<void> {
    const content = {
      chainTokenSeeds: () => new BigUint64Array(),
      fill: async () => {},
    };
    const parts = {
      cache: this.#cache,
      content: content as never,
      pageTable: undefined as never,
      contentPlace: { firstHead: 0 },
      owner: { cpSize: 1, cpRank: 0 },
      heldRequests: 0,
    };
    const id = this.#nextId++;
    for (const { prompt, ...bounds } of prompts)
      await restorePrompt(parts, id, promptTokens(prompt), { ...bounds, chunkTokens: 128, waitMs: 0 });
  }

  serve({ prompt, maxTokens }: PlannedRequest): number {
    if (Math.ceil((prompt.tokenCount + maxTokens - 1) / this.#blockTokens) > this.#slotCount) return 0;
    const tokens = promptTokens(prompt);
    const id = this.#nextId++;
    const blockHashes = chainBlockHashes(tokens, this.#blockTokens);
    const { prepopulatedLen } = this.#cache.addRequest(id, { promptLen: tokens.length, blockHashes });
    if (this.#cache.ensureCapacity(id, tokens.length)) this.#cache.markComputed(id, tokens.length);
    this.#cache.freeRequest(id);
    return prepopulatedLen;
  }
}

/** Runs all variants in turns over one cache. @returns tokens that each request of a variant found, in the order of the trace */
async function foundBy(groups: readonly RequestGroup[], cache: OneCache): Promise<ReadonlyMap<string, number[]>> {
  const found = new Map<string, number[]>();
  for (const { requests, standing } of groups) {
    await cache.restore(standing?.context ?? []);
    for (const request of requests) {
      const list = found.get(request.variant) ?? [];
      found.set(request.variant, list);
      list.push(cache.serve(request));
    }
  }
  return found;
}

const sum = (numbers: readonly number[]): number => numbers.reduce((total, number) => total + number, 0);

describe.each([
  ['conversations', readTrace(CONVERSATIONS, 300)],
  ['users who come back', returningUsers(400)],
] as const)('the hit rate of a replay of %s', (_name, trace) => {
  it.each([
    [700, 8],
    [1500, 8],
    [3000, 32],
    [20_000, 16],
  ])('is that of a plain LRU cache of %i tokens in blocks of %i, in however many rounds', async (poolTokens, block) => {
    const args = [
      '--pool-tokens',
      String(poolTokens),
      '--block-size',
      String(block),
      '--generation-block-size',
      String(block),
    ];
    const slots = Math.floor(poolTokens / block);
    for (const rounds of [1, 2, 6, 40]) {
      const groups = groupsOf(trace, '--rounds', String(rounds), ...args);
      const lru = new PlainLru(slots, block);
      const whole = groupsOf(trace, '--rounds', '1', '--variants', 'pipelined', ...args)[0]?.requests ?? [];
      const expected = sum(whole.map((request) => lru.serve(request)));
      const cache = new OneCache(slots, block);
      for (const [variant, found] of await foundBy(groups, cache)) {
        // What the plain cache does not know is which slot was left free: a block here and there, of one prompt in a round.
        const bound = rounds === 1 ? 0 : rounds * block;
        expect([rounds, variant, Math.abs(sum(found) - expected) <= bound, sum(found), expected]).toEqual([
          rounds,
          variant,
          true,
          sum(found),
          expected,
        ]);
      }
    }
  });
});
