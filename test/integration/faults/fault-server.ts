import { createAgent } from '../../../src/agent/native-agent.js';
import { createPageContent } from '../../../src/agent/native-page-content.js';
import type { PageContent } from '../../../src/agent/page-content.js';
import type { TransferAgent } from '../../../src/agent/transfer-agent.js';
import type { LayerGroup } from '../../../src/cache/kv-cache-manager.js';
import { resolveCacheTransceiverConfig } from '../../../src/config/index.js';
import { KvTransceiverError, SessionRetiredError } from '../../../src/errors.js';
import { createRequest } from '../../../src/executor/create-request.js';
import type { LlmRequest } from '../../../src/executor/request.js';
import { buildPageTable } from '../../../src/mapping/build-page-table.js';
import type { PageTable } from '../../../src/mapping/page-table.js';
import { openTransceiver } from '../../../src/open-transceiver.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import type { KvCacheTransceiver } from '../../../src/transceiver.js';
import { ZeromqMessenger } from '../../../src/wire/zeromq-messenger.js';
import { GuardedCache } from './guarded-cache.js';
import { NoteMoments } from './note-moments.js';
import {
  AUX_SLOTS,
  type Inspection,
  type OutcomeNews,
  type ServerNews,
  type ServerSettings,
  TOKENS_PER_BLOCK,
  WINDOW_TOKENS,
} from './server-messages.js';

/** What ends when its request does. */
interface Job {
  readonly rid: string;
  readonly request: LlmRequest;
  readonly seeds: BigUint64Array;
  /** Native code reads or writes its pages for this server: they are given back afterwards. */
  touching: boolean;
  ended: boolean;
  /** Set while a chunk is held back. */
  resume: (() => void) | null;
}

/**
 * Role: one server of the fault tests: the real transceiver, agent and messenger, and an engine that writes pages whose every byte is
 *   known from the request's id. Plays the executor: gives the request's pages back at its outcome, whatever the ledger still holds.
 */
export class FaultServer {
  readonly endpoint: string;
  readonly moments: NoteMoments;
  readonly #agent: TransferAgent;
  readonly #transceiver: KvCacheTransceiver;
  readonly #cache: GuardedCache;
  readonly #content: PageContent;
  readonly #table: PageTable;
  readonly #tell: (news: ServerNews) => void;
  readonly #warnings: string[];
  readonly #jobs = new Map<string, Job>();
  #wakers: (() => void)[] = [];
  #nextId = 1;

  private constructor(parts: {
    readonly endpoint: string;
    readonly moments: NoteMoments;
    readonly agent: TransferAgent;
    readonly transceiver: KvCacheTransceiver;
    readonly cache: GuardedCache;
    readonly content: PageContent;
    readonly table: PageTable;
    readonly tell: (news: ServerNews) => void;
    readonly warnings: string[];
  }) {
    this.endpoint = parts.endpoint;
    this.moments = parts.moments;
    this.#agent = parts.agent;
    this.#transceiver = parts.transceiver;
    this.#cache = parts.cache;
    this.#content = parts.content;
    this.#table = parts.table;
    this.#tell = parts.tell;
    this.#warnings = parts.warnings;
    parts.transceiver.onActivity(() => this.#onActivity());
  }

  static async open(settings: ServerSettings, tell: (news: ServerNews) => void): Promise<FaultServer> {
    const { role, pageCount, headDim, limits, linkGbps } = settings;
    const group = (layers: readonly number[], windowSize: number | null): LayerGroup => ({
      kind: 'attention',
      windowSize,
      tokensPerBlock: TOKENS_PER_BLOCK,
      layers,
      slotCount: pageCount,
    });
    const groups = [group([0, 1], null), group([2], WINDOW_TOKENS)];
    const cache = new GuardedCache(groups, TOKENS_PER_BLOCK, role === 'context' ? 3 : 4);
    const layout = buildPageTable({
      groups: cache.layerGroups,
      kvHeads: 1,
      headDim,
      dtype: 'bfloat16',
      poolLayout: 'per-layer',
      blockLayout: 'HND',
    });
    const messenger = await ZeromqMessenger.open({ host: settings.host, port: settings.port });
    const agent = await createAgent({
      kind: settings.agent,
      name: role,
      ...(linkGbps === null ? {} : { linkGbps }),
    });
    const warnings: string[] = [];
    const moments = new NoteMoments();
    const { transceiver, pageTable } = await openTransceiver({
      instanceName: role,
      agent: moments.between(agent),
      messenger,
      cache,
      layout,
      config: resolveCacheTransceiverConfig(
        { ...limits, enablePipelinedTransfer: true, backend: settings.agent === 'host' ? 'HOST' : 'NIXL' },
        {
          role,
          scheduleStyle: 'generation_first',
          chunkedPrefillEffective: true,
          beamWidth: 1,
          nixlAvailable: settings.agent === 'nixl',
        },
      ),
      auxSlotCount: AUX_SLOTS,
      log: { warn: (message) => void warnings.push(message), info: () => {} },
    });
    cache.guard(agent, pageTable);
    const content = createPageContent();
    return new FaultServer({
      endpoint: messenger.endpoint,
      moments,
      agent,
      transceiver,
      cache,
      content,
      table: pageTable,
      tell,
      warnings,
    });
  }

  /** Computes and sends a prompt, chunk by chunk, once its receiver asked. Resolves when it did its part, or the request ended. */
  async prefill(rid: string, promptTokens: number, chunkTokens: number, holdBefore: number | null): Promise<void> {
    const job = this.#newJob(rid, promptTokens, 'context_only', null);
    const { request } = job;
    const wait = async (ready: () => boolean): Promise<void> => {
      while (!job.ended && !ready()) await this.#activity();
    };
    await wait(() => this.#transceiver.receiverReady(request));
    for (let chunk = 0; request.chunkEnd < promptTokens && !job.ended; chunk++) {
      if (chunk === holdBefore) await this.#held(job, chunk);
      const end = Math.min(promptTokens, request.chunkEnd + chunkTokens);
      await wait(() => this.#cache.ensureCapacity(request.id, end));
      if (job.ended) return;
      request.chunkStart = request.chunkEnd;
      request.chunkEnd = end;
      const computed = this.#agent.createEvent();
      try {
        this.#transceiver.respondAndSendAsync(request, { after: computed });
      } catch (error) {
        // It ended meanwhile, and its outcome says why.
        if (!(error instanceof SessionRetiredError)) throw error;
        computed.signal();
        return;
      }
      this.#tell({ kind: 'sent', rid, chunk });
      await this.#touch(job, () => this.#fill(job));
      computed.signal();
    }
    if (job.ended) return;
    request.outputTokens.push(firstTokenOf(rid));
    // The aux content leaves with the first token, which is known now.
    this.#onActivity();
  }

  /** Asks for a prompt. False: there are no pages for it now. */
  receive(rid: string, promptTokens: number, endpoint: string): boolean {
    const job = this.#newJob(rid, promptTokens, 'generation_only', endpoint);
    const { request } = job;
    if (!this.#cache.ensureCapacity(request.id, promptTokens, promptTokens)) {
      this.#drop(job);
      return false;
    }
    this.#transceiver.requestAndReceiveAsync(request);
    return true;
  }

  resume(rid: string): void {
    this.#jobs.get(rid)?.resume?.();
  }

  /** False when it is not known, or already over. */
  cancel(rid: string): boolean {
    const job = this.#jobs.get(rid);
    if (job === undefined) return false;
    this.#transceiver.cancelRequest(job.request, 'cancelled by the test');
    return true;
  }

  inspect(): Inspection {
    const { held, sendSessions, receiveSessions, freeAuxSlots, peers, counters } = this.#transceiver.stats();
    return {
      open: [...this.#jobs.keys()],
      held,
      sendSessions,
      receiveSessions,
      freeAuxSlots,
      freePages: this.#cache.stats().map(({ free }) => free),
      violations: this.#cache.check(),
      peers,
      counters,
      warnings: this.#warnings.slice(-20),
    };
  }

  close(deadlineMs: number): Promise<{ readonly drained: boolean; readonly outstanding: number }> {
    return this.#transceiver.close(deadlineMs);
  }

  /** Resolves at the next sign that something may have changed. */
  #activity(): Promise<void> {
    return new Promise((resolve) => this.#wakers.push(resolve));
  }

  #onActivity(): void {
    for (const settled of this.#transceiver.takeSettled()) void this.#end(settled);
    const wakers = this.#wakers;
    this.#wakers = [];
    for (const wake of wakers) wake();
  }

  async #end(settled: Settled): Promise<void> {
    const { request, outcome, error } = settled;
    const job = [...this.#jobs.values()].find((candidate) => candidate.request === request);
    if (job === undefined)
      throw new Error(`a second outcome of request ${request.disagg?.disaggRequestId}: ${outcome}`);
    job.ended = true;
    job.resume?.();
    let bytesChecked = 0;
    let wrongBytes = 0;
    if (settled.side === 'generation' && outcome === 'completed') {
      ({ bytesChecked, wrongBytes } = await this.#touch(job, () => this.#verify(job)));
      if (settled.firstTokens[0] !== firstTokenOf(job.rid)) wrongBytes += 4;
    }
    if (!job.touching) this.#drop(job);
    const news: OutcomeNews = {
      kind: 'outcome',
      rid: job.rid,
      outcome,
      code: error?.code ?? null,
      message: error?.message ?? '',
      bytesChecked,
      wrongBytes,
    };
    this.#tell(news);
    this.#onActivity();
  }

  #newJob(
    rid: string,
    promptTokens: number,
    requestType: 'context_only' | 'generation_only',
    endpoint: string | null,
  ): Job {
    const tokens = tokensOf(rid, promptTokens);
    const request = createRequest({
      id: this.#nextId++,
      promptTokens: tokens,
      maxTokens: 1,
      disagg: {
        requestType,
        scheduleStyle: 'generation_first',
        ctxRequestId: null,
        disaggRequestId: BigInt(rid),
        ctxDpRank: null,
        ctxInfoEndpoint: endpoint,
        firstGenTokens: [],
        draftTokens: [],
        traceparent: '',
      },
      transferPolicy: { pipelined: true, earlyPrefix: false },
    });
    const seeds = this.#content.chainTokenSeeds(tokens);
    const job: Job = { rid, request, seeds, touching: false, ended: false, resume: null };
    this.#jobs.set(rid, job);
    const blockHashes = Array.from({ length: Math.floor(promptTokens / TOKENS_PER_BLOCK) }, (_, i) => `${rid}:${i}`);
    this.#cache.addRequest(request.id, { promptLen: promptTokens, blockHashes });
    return job;
  }

  #drop(job: Job): void {
    this.#jobs.delete(job.rid);
    this.#cache.freeRequest(job.request.id);
  }

  async #held(job: Job, chunk: number): Promise<void> {
    const resumed = new Promise<void>((resolve) => {
      job.resume = resolve;
    });
    this.#tell({ kind: 'held', rid: job.rid, chunk });
    await resumed;
  }

  async #touch<T>(job: Job, work: () => Promise<T>): Promise<T> {
    job.touching = true;
    try {
      return await work();
    } finally {
      job.touching = false;
      // A prefill that lost its request meanwhile: nobody else gives the pages back.
      if (job.ended && job.request.disagg?.requestType === 'context_only') this.#drop(job);
    }
  }

  async #fill(job: Job): Promise<void> {
    const { id, chunkStart, chunkEnd } = job.request;
    const beginBlock = Math.floor(chunkStart / TOKENS_PER_BLOCK);
    const endBlock = Math.ceil(chunkEnd / TOKENS_PER_BLOCK);
    for (const [group] of this.#cache.layerGroups.entries()) {
      const run = this.#cache.getBlockIdsRange(id, group, beginBlock, endBlock);
      const bounds = { tokenBegin: chunkStart, tokenEnd: chunkEnd, tokenSeeds: job.seeds, firstHead: 0 };
      await this.#content.fill({ table: this.#table, group, run, ...bounds });
    }
  }

  async #verify(job: Job): Promise<{ bytesChecked: number; wrongBytes: number }> {
    const { id, promptTokens } = job.request;
    const total = { bytesChecked: 0, wrongBytes: 0 };
    for (const [group] of this.#cache.layerGroups.entries()) {
      const run = this.#cache.getBlockIdsRange(id, group, 0, Math.ceil(promptTokens.length / TOKENS_PER_BLOCK));
      const tokenBegin = run.begin * TOKENS_PER_BLOCK;
      const bounds = { tokenBegin, tokenEnd: promptTokens.length, tokenSeeds: job.seeds, firstHead: 0 };
      const found = await this.#content.verify({ table: this.#table, group, run, ...bounds });
      total.bytesChecked += found.bytesChecked;
      total.wrongBytes += found.wrongBytes;
    }
    return total;
  }
}

function tokensOf(rid: string, count: number): Uint32Array {
  let state = Number(BigInt(rid) & 0xffffffffn) | 1;
  return Uint32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state;
  });
}

function firstTokenOf(rid: string): number {
  return Number(BigInt(rid) % 50_000n) + 1;
}

/** For whoever sees only text. */
export function textOf(error: unknown): string {
  if (error instanceof KvTransceiverError) return `${error.code}: ${error.message}`;
  return error instanceof Error ? (error.stack ?? error.message) : String(error);
}
