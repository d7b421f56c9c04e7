import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type { LayerGroup } from '../../../cache/kv-cache-manager.js';
import { SystemClock } from '../../../clock.js';
import { resolveCacheTransceiverConfig } from '../../../config/index.js';
import { InternalError } from '../../../errors.js';
import { createRequest } from '../../../executor/create-request.js';
import type { LlmRequest } from '../../../executor/request.js';
import { buildPageTable } from '../../../mapping/build-page-table.js';
import { openTransceiver } from '../../../open-transceiver.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import type { KvCacheTransceiver } from '../../../transceiver.js';
import { InstantAgent } from './instant-agent.js';
import { LoopMessenger } from './loop-messenger.js';

export const SLICES_PER_REQUEST = 16;
const TOKENS_PER_BLOCK = 16;
/** One chunk of prefill: 512 tokens. */
const BLOCKS_PER_SLICE = 32;
const PROMPT_TOKENS = SLICES_PER_REQUEST * BLOCKS_PER_SLICE * TOKENS_PER_BLOCK;
const BLOCKS = PROMPT_TOKENS / TOKENS_PER_BLOCK;
/** There is room for so many: pages go back a turn after the outcome. */
export const REQUESTS_PER_TURN = 20;
const TIMEOUT_MS = 3_600_000;
const FIRST_RID = 1n << 44n;

interface End {
  readonly transceiver: KvCacheTransceiver;
  readonly cache: GrowingCacheManager;
  readonly agent: InstantAgent;
}

/**
 * Role: a context and a generation transceiver in one process, whose transfers run to their end inside one call: the time of the call is
 *   what both sides' JavaScript costs, and nothing else.
 */
export class ObservedLoop {
  readonly context: KvCacheTransceiver;
  readonly generation: KvCacheTransceiver;
  readonly #ends: readonly [End, End];
  readonly #messengers: readonly [LoopMessenger, LoopMessenger];
  #next = 1;

  private constructor(ends: readonly [End, End], messengers: readonly [LoopMessenger, LoopMessenger]) {
    this.#ends = ends;
    this.#messengers = messengers;
    this.context = ends[0].transceiver;
    this.generation = ends[1].transceiver;
  }

  static async open(): Promise<ObservedLoop> {
    const messengers = LoopMessenger.pair();
    const loop = new ObservedLoop(
      [await openEnd('context', messengers[0]), await openEnd('generation', messengers[1])],
      messengers,
    );
    // The two greet each other: their memory is linked between turns of the event loop.
    const { sent, received } = loop.#admit();
    loop.#begin(sent, received);
    for (let turns = 0; loop.generation.stats().receiveSessionsByState.created > 0; turns += 1) {
      if (turns === 1000) throw new InternalError('the two transceivers did not greet each other');
      loop.#pump();
      await new Promise(setImmediate);
    }
    loop.#finish(sent);
    loop.#free(sent.id);
    return loop;
  }

  /** One request from its question to the end on both sides. @throws InternalError when it does not complete */
  run(): void {
    const { sent, received } = this.#admit();
    this.#begin(sent, received);
    this.#finish(sent);
    this.#free(sent.id);
  }

  async close(): Promise<void> {
    await Promise.all(this.#ends.map(({ transceiver }) => transceiver.close(0)));
  }

  /** The context server first: who names first tokens is asked nothing before it knows the request. */
  #begin(sent: LlmRequest, received: LlmRequest): void {
    this.#send(sent, 0);
    this.generation.requestAndReceiveAsync(received);
    this.#pump();
  }

  #send(request: LlmRequest, slice: number): void {
    request.chunkStart = slice * BLOCKS_PER_SLICE * TOKENS_PER_BLOCK;
    request.chunkEnd = request.chunkStart + BLOCKS_PER_SLICE * TOKENS_PER_BLOCK;
    this.context.respondAndSendAsync(request, { after: null });
  }

  #finish(sent: LlmRequest): void {
    for (let slice = 1; slice < SLICES_PER_REQUEST; slice += 1) {
      this.#send(sent, slice);
      this.#pump();
    }
    const settled: readonly Settled[] = [...this.context.takeSettled(), ...this.generation.takeSettled()];
    if (settled.length !== 2 || settled.some(({ outcome }) => outcome !== 'completed'))
      throw new InternalError(`a transfer ended as ${settled.map(({ error, outcome }) => error?.message ?? outcome)}`);
  }

  /** Until nobody has anything to say. */
  #pump(): void {
    let moved = true;
    while (moved) {
      for (const { agent } of this.#ends) agent.flush();
      moved = this.#messengers[0].deliver();
      moved = this.#messengers[1].deliver() || moved;
    }
  }

  #admit(): { readonly sent: LlmRequest; readonly received: LlmRequest } {
    const id = this.#next++;
    const requestOf = (requestType: 'context_only' | 'generation_only'): LlmRequest =>
      createRequest({
        id,
        promptTokens: new Uint32Array(PROMPT_TOKENS),
        maxTokens: 1,
        disagg: {
          requestType,
          // First tokens come with the request: no aux content.
          scheduleStyle: 'context_first',
          ctxRequestId: null,
          disaggRequestId: FIRST_RID + BigInt(id),
          ctxDpRank: null,
          ctxInfoEndpoint: this.context.endpoint,
          firstGenTokens: [1],
          draftTokens: [],
          traceparent: '',
        },
        transferPolicy: { pipelined: true, earlyPrefix: false },
      });
    const blockHashes = Array.from({ length: BLOCKS }, (_, block) => `${id}:${block}`);
    for (const { cache } of this.#ends) {
      cache.addRequest(id, { promptLen: PROMPT_TOKENS, blockHashes });
      if (!cache.ensureCapacity(id, PROMPT_TOKENS)) throw new InternalError(`no pages for request ${id}`);
    }
    return { sent: requestOf('context_only'), received: requestOf('generation_only') };
  }

  #free(id: number): void {
    for (const { cache } of this.#ends) cache.freeRequest(id);
  }
}

async function openEnd(role: 'context' | 'generation', messenger: LoopMessenger): Promise<End> {
  const clock = new SystemClock();
  const groups: readonly LayerGroup[] = [
    {
      kind: 'attention',
      windowSize: null,
      tokensPerBlock: TOKENS_PER_BLOCK,
      layers: [0, 1],
      slotCount: (REQUESTS_PER_TURN + 1) * BLOCKS,
    },
  ];
  const cache = new GrowingCacheManager({ tokensPerBlock: TOKENS_PER_BLOCK, layerGroups: groups });
  const agent = new InstantAgent(role, () => clock.now());
  const { transceiver } = await openTransceiver({
    instanceName: role,
    agent,
    messenger,
    cache,
    layout: buildPageTable({
      groups,
      kvHeads: 1,
      headDim: 8,
      dtype: 'bfloat16',
      poolLayout: 'per-layer',
      blockLayout: 'HND',
    }),
    config: resolveCacheTransceiverConfig(
      {
        backend: 'HOST',
        transferQueueTimeoutMs: TIMEOUT_MS,
        noProgressTimeoutMs: TIMEOUT_MS,
        kvTransferTimeoutMs: TIMEOUT_MS,
      },
      { role },
    ),
    auxSlotCount: 1,
    clock,
  });
  return { transceiver, cache, agent };
}
