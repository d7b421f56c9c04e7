import { GrowingCacheManager } from '../../../src/cache/growing-cache-manager.js';
import type { Clock } from '../../../src/clock.js';
import { createRequest } from '../../../src/executor/create-request.js';
import {
  LocalTensorGroup,
  TinyEngine,
  type TinyEngineOptions,
  TinyModel,
  type TinyModelConfig,
  tinyLayerGroups,
} from '../../../src/executor/engines/tiny/index.js';
import type { ScheduledWork } from '../../../src/executor/model-engine.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { buildPageTable, kvHeadShard, type PageTable, rebasePageTable } from '../../../src/mapping/index.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { type SimAgent, SimFabric } from '../../sim-lite/sim-agent.js';

export interface EngineSetup {
  readonly config: TinyModelConfig;
  readonly tokensPerBlock?: number;
  readonly dtype?: 'float32' | 'bfloat16';
  readonly blockLayout?: 'HND' | 'NHD';
  readonly poolLayout?: 'per-layer' | 'per-block';
  readonly tpSize?: number;
  readonly samplingOf?: TinyEngineOptions['samplingOf'];
  readonly clock?: Clock;
}

export interface EngineRank {
  readonly agent: SimAgent;
  readonly cache: GrowingCacheManager;
  readonly table: PageTable;
  readonly engine: TinyEngine;
  readonly tensorGroup: LocalTensorGroup;
}

/** Tiny engines of one server without an executor: the test says what each step runs. */
export class EngineBench {
  readonly ranks: EngineRank[] = [];
  readonly model: TinyModel;
  readonly #requests = new Map<number, LlmRequest>();

  private constructor(model: TinyModel) {
    this.model = model;
  }

  static async create(setup: EngineSetup): Promise<EngineBench> {
    const { config, tokensPerBlock = 4, dtype = 'float32', blockLayout = 'HND', poolLayout = 'per-layer' } = setup;
    const { tpSize = 1, samplingOf, clock = new FakeClock() } = setup;
    const bench = new EngineBench(new TinyModel(config));
    const fabric = new SimFabric(clock);
    for (const [rank, tensorGroup] of LocalTensorGroup.of(tpSize).entries()) {
      const groups = tinyLayerGroups(config, { tokensPerBlock, slotCount: 64 });
      const { headsPerRank: kvHeads } = kvHeadShard(config.kvHeads, tpSize, rank);
      const { headDim } = config;
      const built = buildPageTable({ groups, kvHeads, headDim, dtype, poolLayout, blockLayout });
      const agent = fabric.createAgent(`rank ${rank}`);
      const pool = await agent.allocatePool({ sizeBytes: built.sizeBytes });
      const table = rebasePageTable(built.table, pool.base);
      // What no one wrote must not be mistaken for content.
      agent.bytesAt(pool.base, pool.sizeBytes).fill(0xff);
      const cache = new GrowingCacheManager({ tokensPerBlock, layerGroups: groups, seed: 5 + rank });
      const engine = new TinyEngine({
        clock,
        agent,
        cache,
        pageTable: table,
        model: bench.model,
        tensorGroup,
        ...(samplingOf === undefined ? {} : { samplingOf }),
      });
      bench.ranks.push({ agent, cache, table, engine, tensorGroup });
    }
    return bench;
  }

  add(id: number, prompt: readonly number[]): LlmRequest {
    const request = createRequest({ id, promptTokens: Uint32Array.from(prompt), maxTokens: 100 });
    this.#requests.set(id, request);
    for (const { cache } of this.ranks) {
      // Nothing is ever found again.
      const blockHashes = Array.from(
        { length: Math.floor(prompt.length / cache.tokensPerBlock) },
        (_, i) => `${id} ${i}`,
      );
      cache.addRequest(id, { promptLen: prompt.length, blockHashes });
    }
    return request;
  }

  /** Runs prompt tokens up to `end`, from where the request is; with nothing left, one decode step. */
  work(request: LlmRequest, end?: number): ScheduledWork {
    const { promptTokens, outputTokens } = request;
    if (end !== undefined) return { request, chunkStart: request.chunkEnd, chunkEnd: end };
    const position = promptTokens.length + outputTokens.length - 1;
    return { request, chunkStart: position, chunkEnd: position };
  }

  /** One step on all ranks. Every rank says the same tokens, which end up in the requests. */
  async step(works: readonly ScheduledWork[]): Promise<void> {
    const isDecode = ({ chunkStart, chunkEnd }: ScheduledWork): boolean => chunkStart === chunkEnd;
    const batch = { context: works.filter((work) => !isDecode(work)), generation: works.filter(isDecode) };
    const endOf = (work: ScheduledWork): number => work.chunkEnd + Number(isDecode(work));
    for (const { cache } of this.ranks)
      for (const work of works)
        if (!cache.ensureCapacity(work.request.id, endOf(work))) throw new Error('the pool of the test is too small');
    const forwards = await Promise.all(this.ranks.map(({ engine }) => engine.forward(batch)));
    const said = await Promise.all(forwards.map(({ tokens }) => tokens));
    for (const work of works) {
      const tokens = new Set(said.map((all) => all.get(work.request)));
      if (tokens.size !== 1) throw new Error(`ranks sampled ${[...tokens].join(', ')}`);
      const [token] = tokens;
      work.request.chunkEnd = Math.min(endOf(work), work.request.promptTokens.length);
      if (token !== undefined) work.request.outputTokens.push(token);
      for (const { cache } of this.ranks) cache.markComputed(work.request.id, endOf(work));
    }
  }

  /** A prompt in chunks of these sizes (the rest in one), then decode steps. @returns the tokens */
  async generate(prompt: readonly number[], chunks: readonly number[], count: number, id = 1): Promise<number[]> {
    const request = this.add(id, prompt);
    for (const size of [...chunks, prompt.length]) {
      const end = Math.min(prompt.length, request.chunkEnd + size);
      if (end > request.chunkEnd) await this.step([this.work(request, end)]);
    }
    while (request.outputTokens.length < count) await this.step([this.work(request)]);
    return request.outputTokens;
  }
}
