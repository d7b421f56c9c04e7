import type { TransferAgent } from '../../../agent/transfer-agent.js';
import { GrowingCacheManager } from '../../../cache/growing-cache-manager.js';
import type { KvCacheManager, LayerGroup } from '../../../cache/kv-cache-manager.js';
import { SystemClock } from '../../../clock.js';
import { resolveCacheTransceiverConfig } from '../../../config/index.js';
import { InternalError } from '../../../errors.js';
import { createRequest } from '../../../executor/create-request.js';
import type { LlmRequest } from '../../../executor/request.js';
import { buildPageTable } from '../../../mapping/build-page-table.js';
import { openTransceiver } from '../../../open-transceiver.js';
import type { KvCacheTransceiver } from '../../../transceiver.js';
import { ZeromqMessenger } from '../../../wire/zeromq-messenger.js';
import { openAgent } from '../open-agent.js';

export const TOKENS_PER_BLOCK = 16;
export const PROMPT_TOKENS = 64;
export const CHUNK_TOKENS = 32;
export const BLOCKS_PER_REQUEST: number = PROMPT_TOKENS / TOKENS_PER_BLOCK;
const PAGE_SHAPE = { kvHeads: 1, headDim: 8, dtype: 'bfloat16', poolLayout: 'per-layer', blockLayout: 'HND' } as const;
/** Keys and values of one request. */
export const BYTES_PER_REQUEST: number = PROMPT_TOKENS * PAGE_SHAPE.headDim * 2 * 2;
/** A request may live through the whole run. */
const TIMEOUT_MS = 3_600_000;
/** Global ids start above the local ones. */
const FIRST_RID = 1n << 44n;

/** One end of the pair: real pools, agent, messenger and transceiver, with pages so small that moving them costs next to nothing. */
export class SessionServer {
  readonly clock = new SystemClock();
  readonly endpoint: string;
  readonly cache: KvCacheManager;
  readonly transceiver: KvCacheTransceiver;

  private constructor(endpoint: string, cache: KvCacheManager, transceiver: KvCacheTransceiver) {
    this.endpoint = endpoint;
    this.cache = cache;
    this.transceiver = transceiver;
  }

  /** @param requests pages and aux slots for so many at once */
  static async open(role: 'context' | 'generation', requests: number): Promise<SessionServer> {
    const groups: readonly LayerGroup[] = [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: TOKENS_PER_BLOCK,
        layers: [0],
        slotCount: requests * BLOCKS_PER_REQUEST,
      },
    ];
    const cache = new GrowingCacheManager({ tokensPerBlock: TOKENS_PER_BLOCK, layerGroups: groups });
    const messenger = await ZeromqMessenger.open();
    let agent: TransferAgent;
    try {
      ({ agent } = await openAgent('host', null, role));
    } catch (error) {
      await messenger.close(0);
      throw error;
    }
    const { transceiver } = await openTransceiver({
      instanceName: role,
      agent,
      messenger,
      cache,
      layout: buildPageTable({ groups, ...PAGE_SHAPE }),
      config: resolveCacheTransceiverConfig(
        {
          backend: 'HOST',
          enablePipelinedTransfer: true,
          transferQueueTimeoutMs: TIMEOUT_MS,
          noProgressTimeoutMs: TIMEOUT_MS,
          kvTransferTimeoutMs: TIMEOUT_MS,
        },
        { role, scheduleStyle: 'generation_first', chunkedPrefillEffective: true, beamWidth: 1 },
      ),
      auxSlotCount: requests,
    });
    return new SessionServer(messenger.endpoint, cache, transceiver);
  }

  /** The request of this number; `writer` names the context server on the generation side. */
  makeRequest(number: number, writer: string | null): LlmRequest {
    return createRequest({
      id: number,
      promptTokens: new Uint32Array(PROMPT_TOKENS).fill(number),
      maxTokens: 1,
      disagg: {
        requestType: writer === null ? 'context_only' : 'generation_only',
        scheduleStyle: 'generation_first',
        ctxRequestId: null,
        disaggRequestId: FIRST_RID + BigInt(number),
        ctxDpRank: null,
        ctxInfoEndpoint: writer,
        firstGenTokens: [],
        draftTokens: [],
        traceparent: '',
      },
      transferPolicy: { pipelined: true, earlyPrefix: false },
    });
  }

  /** Takes the request's pages; the pool has room for all that are live at once. */
  admit({ id, disagg }: LlmRequest): void {
    const receives = disagg?.requestType === 'generation_only';
    this.cache.addRequest(id, { promptLen: PROMPT_TOKENS, blockHashes: blockHashesOf(id) });
    if (!this.cache.ensureCapacity(id, PROMPT_TOKENS, receives ? PROMPT_TOKENS : 0))
      throw new InternalError(`no pages for request ${id}`);
  }
}

/** Equal for no two prompts, and cheaper than hashing: what is measured is the sessions. */
export function blockHashesOf(number: number): readonly string[] {
  return Array.from({ length: BLOCKS_PER_REQUEST }, (_, block) => `${number}:${block}`);
}
