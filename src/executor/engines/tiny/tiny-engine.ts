import type { ReadyEvent, TransferAgent } from '../../../agent/transfer-agent.js';
import type { KvCacheManager } from '../../../cache/kv-cache-manager.js';
import type { Clock } from '../../../clock.js';
import { InternalError } from '../../../errors.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { TurnBudget } from '../../../turn-budget.js';
import type { ForwardResult, ModelEngine, ScheduledBatch } from '../../model-engine.js';
import type { LlmRequest } from '../../request.js';
import { typedError } from '../../typed-error.js';
import { attend, type VisibleKv } from './attend.js';
import type { PageBytes } from './kv-pages.js';
import { GREEDY, type Sampling, sampleToken } from './sampling.js';
import type { TensorForward, TensorGroup } from './tensor-group.js';
import type { TinyModel } from './tiny-model.js';
import { type TinyShard, tinyShard } from './tiny-shard.js';
import { type TinyWork, tinyWork } from './tiny-work.js';

/** Parts of a tiny engine; all stay their owner's. */
export interface TinyEngineOptions {
  readonly clock: Clock;
  readonly agent: Pick<TransferAgent, 'createEvent'> & PageBytes;
  readonly cache: KvCacheManager;
  /** Host pools of `float32` or `bfloat16`, one layer group for each kind of layer the model has; see `tinyLayerGroups`. */
  readonly pageTable: PageTable;
  /** May be shared by ranks and servers. */
  readonly model: TinyModel;
  /** The ranks that share the model's heads. Default: this one has all. */
  readonly tensorGroup?: TensorGroup;
  /** Must say the same of a request on every rank and server. Default: greedy. */
  readonly samplingOf?: (request: LlmRequest) => Sampling;
}

/**
 * Role: a small real transformer on the CPU. What it knows of earlier tokens it reads from pages, each time.
 * Why: a wrong, stale or missing page changes the tokens, so that equal tokens prove a transfer.
 * Threading: computes on the JS thread and gives the event loop a turn every few milliseconds.
 * Keys are stored as they are before rotary positions and are turned when they are read: two pages that changed places are then seen.
 * Ordering: forwards run one after another, as on one stream, layer by layer: keys and values of all rows are written before any row
 *   attends. Every token is computed by the same operations in the same order in whatever chunk, batch or block it comes.
 * Several ranks: heads are split. Each rank writes and reads the pages of its own KV heads and attends with its own query heads; the
 *   ranks then lay what their heads attended to side by side and each does the rest in full, so that all sample the same token and no
 *   floating-point sum depends on the split.
 */
export class TinyEngine implements ModelEngine {
  readonly feedsItself = true;
  readonly #o: TinyEngineOptions;
  readonly #shard: TinyShard;
  /** The newest token of each request: with the overlap schedule it is fed before the executor has read it. */
  readonly #sampled = new WeakMap<LlmRequest, { readonly position: number; readonly token: number }>();
  /** Requests of forwards that failed: a decode step that should be fed what such a forward never sampled is left out of its batch. */
  readonly #lost = new WeakSet<LlmRequest>();
  /** When the stream is free again; settles, never rejects. */
  #stream: Promise<void> = Promise.resolve();

  /** @throws ConfigError when the page table does not fit the model or the group */
  constructor(options: TinyEngineOptions) {
    this.#o = options;
    const { agent, pageTable, model, tensorGroup } = options;
    this.#shard = tinyShard(agent, pageTable, model.config, tensorGroup ?? { rank: 0, size: 1 });
  }

  async forward(batch: ScheduledBatch): Promise<ForwardResult> {
    const { agent, cache } = this.#o;
    // Where the pages are is read now: by the time the stream gets here, the cache may have moved on.
    let works: readonly TinyWork[];
    try {
      works = [...batch.context, ...batch.generation].map((work) => tinyWork(cache, work));
    } catch (error) {
      const failure = typedError(error, 'the tiny engine found no pages');
      this.#lose(batch);
      // The other ranks must not wait for this one's part.
      void this.#enqueue(() => this.#o.tensorGroup?.begin(describe(batch)).leave(failure));
      throw failure;
    }
    const event = agent.createEvent();
    const tokens = this.#enqueue(() => this.#execute(batch, works, event));
    return { event, tokens };
  }

  #enqueue<T>(act: () => T | Promise<T>): Promise<T> {
    const done = this.#stream.then(act);
    this.#stream = done.then(
      () => {},
      // The rejection belongs to whoever awaits the result; the stream only has to go on.
      () => {},
    );
    return done;
  }

  async #execute(
    batch: ScheduledBatch,
    works: readonly TinyWork[],
    event: ReadyEvent,
  ): Promise<ReadonlyMap<LlmRequest, number>> {
    const together = this.#o.tensorGroup?.begin(describe(batch)) ?? null;
    try {
      await pagesReady(batch);
      const left = works.filter(
        ({ request, end }) => this.#token(request, end - 1) !== null || !this.#lost.has(request),
      );
      const sampled = await this.#compute(left, together);
      event.signal();
      together?.leave(null);
      return sampled;
    } catch (error) {
      const failure = typedError(error, 'the tiny engine failed');
      this.#lose(batch);
      event.fail(failure.message);
      together?.leave(failure);
      throw failure;
    }
  }

  #lose({ context, generation }: ScheduledBatch): void {
    for (const { request } of [...context, ...generation]) this.#lost.add(request);
  }

  async #compute(works: readonly TinyWork[], together: TensorForward | null): Promise<ReadonlyMap<LlmRequest, number>> {
    const { clock, model, samplingOf } = this.#o;
    const budget = new TurnBudget(clock);
    const streams = works.map((work) => this.#embed(work));
    for (let layer = 0; layer < model.config.layers.length; layer++) {
      const queries: Float32Array[] = [];
      for (const [index, work] of works.entries()) {
        queries.push(await this.#projectAndStore(layer, work, streams[index] as readonly Float32Array[], budget));
      }
      const parts: Float32Array[] = [];
      for (const [index, work] of works.entries()) {
        parts.push(await this.#attend(layer, work, queries[index] as Float32Array, budget));
      }
      const rows = streams.flat();
      const part = concatenated(parts);
      const gathered = together === null ? [part] : await together.gather(part);
      const attended = new Float32Array(model.config.attentionHeads * model.config.headDim);
      for (const [row, x] of rows.entries()) {
        if (budget.isSpent()) await budget.nextTurn();
        takeRow(gathered, row, rows.length, attended);
        model.finishLayer(layer, attended, x);
      }
    }
    const tokens = new Map<LlmRequest, number>();
    for (const [index, { request, end, samples }] of works.entries()) {
      if (!samples) continue;
      if (budget.isSpent()) await budget.nextTurn();
      const logits = model.logits(streams[index]?.at(-1) as Float32Array);
      const token = sampleToken(logits, samplingOf?.(request) ?? GREEDY, end);
      this.#sampled.set(request, { position: end, token });
      tokens.set(request, token);
    }
    return tokens;
  }

  #embed({ request, begin, end }: TinyWork): readonly Float32Array[] {
    const { model } = this.#o;
    return Array.from({ length: end - begin }, (_, index) => {
      const x = new Float32Array(model.config.modelDim);
      model.embed(this.#tokenAt(request, begin + index), x);
      return x;
    });
  }

  #token(request: LlmRequest, position: number): number | null {
    const { promptTokens, outputTokens } = request;
    const known = promptTokens[position] ?? outputTokens[position - promptTokens.length];
    if (known !== undefined) return known;
    const sampled = this.#sampled.get(request);
    return sampled?.position === position ? sampled.token : null;
  }

  #tokenAt(request: LlmRequest, position: number): number {
    const token = this.#token(request, position);
    if (token !== null) return token;
    throw new InternalError(`request ${request.id}: the token at position ${position} is fed before it was sampled`);
  }

  /** @returns this rank's queries, `[row][head][element]` */
  async #projectAndStore(
    layer: number,
    { begin, pages }: TinyWork,
    rows: readonly Float32Array[],
    budget: TurnBudget,
  ): Promise<Float32Array> {
    const { heads, kvHeads, layers } = this.#shard;
    const { model } = this.#o;
    const { headDim } = model.config;
    const { group, key, value } = layers[layer] as TinyShard['layers'][number];
    const queryDim = (heads.end - heads.begin) * headDim;
    const kvDim = (kvHeads.end - kvHeads.begin) * headDim;
    const query = new Float32Array(rows.length * queryDim);
    const [keys, values] = [new Float32Array(rows.length * kvDim), new Float32Array(rows.length * kvDim)];
    for (const [row, x] of rows.entries()) {
      if (budget.isSpent()) await budget.nextTurn();
      const ofRow = (all: Float32Array, dim: number): Float32Array => all.subarray(row * dim, (row + 1) * dim);
      model.project(layer, begin + row, x, heads, kvHeads, {
        query: ofRow(query, queryDim),
        key: ofRow(keys, kvDim),
        value: ofRow(values, kvDim),
      });
    }
    const { run } = pages[group] as TinyWork['pages'][number];
    key.write(run, begin, keys);
    value.write(run, begin, values);
    return query;
  }

  /** @returns what this rank's heads attended to, `[row][head][element]`; keys and values come from the pages, the newest ones too */
  async #attend(
    layer: number,
    { begin, end, pages }: TinyWork,
    query: Float32Array,
    budget: TurnBudget,
  ): Promise<Float32Array> {
    const { heads, kvHeads, layers } = this.#shard;
    const { headDim, attentionHeads, kvHeads: allKvHeads } = this.#o.model.config;
    const { group, key, value, windowSize, sinkTokens } = layers[layer] as TinyShard['layers'][number];
    const { run, begin: visibleBegin, sinkRun, sinkCount } = pages[group] as TinyWork['pages'][number];
    const kvHeadCount = kvHeads.end - kvHeads.begin;
    const size = (sinkCount + end - visibleBegin) * kvHeadCount * headDim;
    const kv: VisibleKv = {
      key: new Float32Array(size),
      value: new Float32Array(size),
      headDim,
      kvHeads: kvHeadCount,
      sinkCount,
      begin: visibleBegin,
    };
    for (const [from, rows] of [[key, kv.key] as const, [value, kv.value] as const]) {
      from.read(sinkRun, 0, sinkCount, rows, 0);
      from.read(run, visibleBegin, end, rows, sinkCount);
    }
    this.#rotateKeys(kv);
    const out = new Float32Array(query.length);
    const headCount = heads.end - heads.begin;
    for (let row = 0; row < end - begin; row++) {
      if (budget.isSpent()) await budget.nextTurn();
      for (let head = 0; head < headCount; head++) {
        const kvHead = Math.floor(((heads.begin + head) * allKvHeads) / attentionHeads) - kvHeads.begin;
        const offset = (row * headCount + head) * headDim;
        attend(query, offset, kvHead, kv, { position: begin + row, windowSize, sinkTokens }, out, offset);
      }
    }
    return out;
  }

  #rotateKeys({ key, kvHeads, headDim, sinkCount, begin }: VisibleKv): void {
    const rowElements = kvHeads * headDim;
    for (let row = 0; row < key.length / rowElements; row++) {
      const position = row < sinkCount ? row : row - sinkCount + begin;
      this.#o.model.rotate(key.subarray(row * rowElements, (row + 1) * rowElements), position);
    }
  }
}

function describe({ context, generation }: ScheduledBatch): string {
  const works = [...context, ...generation];
  return works.map(({ request, chunkStart, chunkEnd }) => `${request.id}[${chunkStart},${chunkEnd})`).join(' ');
}

/** The forward touches no page that is still being moved. Rejects when such a move failed. */
async function pagesReady({ context, generation }: ScheduledBatch): Promise<void> {
  await Promise.all([...context, ...generation].map(async (work) => work.pagesReady?.done));
}

function concatenated(parts: readonly Float32Array[]): Float32Array {
  const whole = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** One row of all ranks' heads, in the order of the heads. */
function takeRow(parts: readonly Float32Array[], row: number, rowCount: number, out: Float32Array): void {
  let at = 0;
  for (const part of parts) {
    const width = part.length / rowCount;
    out.set(part.subarray(row * width, (row + 1) * width), at);
    at += width;
  }
}
