import { KvTransceiverError } from '../../../errors.js';
import { createRequest } from '../../../executor/create-request.js';
import type { DisaggregatedParams, LlmRequest } from '../../../executor/request.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import { promptTokens } from '../prompt-source.js';
import { BenchServer } from './bench-server.js';
import { verifyReceivedPages } from './page-verification.js';
import { warmPrefix } from './warm-prefix.js';
import type { ContextReport, ReportedError, WorkerCommand, WorkerEvent, WorkerSettings } from './worker-messages.js';

/** Ids of cached prefixes in the cache manager; those of requests are small. */
const WARM_ID_BASE = 2 ** 39;

interface Prompt {
  readonly tokens: Uint32Array;
  readonly seeds: BigUint64Array;
}

/**
 * Role: serves the driver's commands with one `BenchServer`.
 * Ordering: pages of a received request are pinned from its first token until they are verified, so that no later request gets them.
 */
export class BenchWorker {
  readonly #server: BenchServer;
  readonly #settings: WorkerSettings;
  readonly #say: (event: WorkerEvent) => void;
  readonly #prompts = new Map<number, Prompt>();
  readonly #settled: Map<LlmRequest, Settled>;

  private constructor(
    server: BenchServer,
    settings: WorkerSettings,
    settled: Map<LlmRequest, Settled>,
    say: (event: WorkerEvent) => void,
  ) {
    this.#server = server;
    this.#settings = settings;
    this.#settled = settled;
    this.#say = say;
  }

  static async open(settings: WorkerSettings, say: (event: WorkerEvent) => void): Promise<BenchWorker> {
    const settled = new Map<LlmRequest, Settled>();
    const server = await BenchServer.open(settings, (one) => settled.set(one.request, one));
    say({ kind: 'ready', endpoint: server.endpoint, path: settings.agent === 'host' ? 'host' : 'rdma' });
    return new BenchWorker(server, settings, settled, say);
  }

  async prepare({ key, prompt, warmTokens }: Extract<WorkerCommand, { kind: 'prepare' }>): Promise<void> {
    const tokens = promptTokens(prompt);
    const { content } = this.#server;
    this.#prompts.set(key, { tokens, seeds: content.chainTokenSeeds(tokens) });
    await warmPrefix(this.#server, WARM_ID_BASE + key, tokens, warmTokens);
    this.#say({ kind: 'prepared', key });
  }

  submit(command: Extract<WorkerCommand, { kind: 'submit' }>): void {
    const prompt = this.#prompts.get(command.key);
    if (prompt === undefined) throw new RangeError(`request ${command.key} was not prepared`);
    this.#prompts.delete(command.key);
    const request = createRequest({
      id: command.key,
      promptTokens: prompt.tokens,
      // The first token is what is measured; decoding further would only add the model's time.
      maxTokens: 1,
      disagg: this.#disaggregation(command),
      transferPolicy: command.policy,
    });
    try {
      if (this.#settings.role === 'context') this.#submitContext(request);
      else this.#submitGeneration(request, prompt.seeds);
    } catch (error) {
      this.#say({ kind: 'requestFailed', key: command.key, error: describeError(error) });
    }
  }

  close(deadlineMs: number): Promise<boolean> {
    return this.#server.close(deadlineMs);
  }

  #disaggregation(command: Extract<WorkerCommand, { kind: 'submit' }>): DisaggregatedParams {
    const isContext = this.#settings.role === 'context';
    return {
      requestType: isContext ? 'context_only' : 'generation_only',
      scheduleStyle: 'generation_first',
      ctxRequestId: null,
      disaggRequestId: command.disaggRequestId,
      ctxDpRank: null,
      ctxInfoEndpoint: isContext ? null : command.contextEndpoint,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: '',
    };
  }

  #submitContext(request: LlmRequest): void {
    this.#server.executor.submit(request, {
      onFinished: (_, outcome) => {
        const report = this.#contextReport(request);
        if (outcome === 'completed' && report !== null) {
          this.#say({ kind: 'contextDone', key: request.id, report });
        } else {
          this.#say({ kind: 'requestFailed', key: request.id, error: describeError(request.error) });
        }
      },
    });
  }

  #contextReport(request: LlmRequest): ContextReport | null {
    const timings = this.#settled.get(request)?.timings;
    this.#settled.delete(request);
    const prefill = this.#server.chunkClock.prefillOf(request);
    if (timings === undefined || prefill === null) return null;
    const last = timings.perSlice.at(-1);
    const finished = timings.perSlice.flatMap((slice) => (slice.finishedAtMs === null ? [] : [slice.finishedAtMs]));
    return {
      cachedTokens: request.prepopulatedLen,
      prefillStartMs: prefill.startMs,
      chunkEndsMs: prefill.chunkEndsMs,
      firstPostMs: timings.firstPostAtMs,
      lastSlicePostMs: last?.postedAtMs ?? null,
      lastByteMs: finished.length === 0 ? null : Math.max(...finished),
      slices: timings.slices,
      bytesPlanned: timings.bytesPlanned,
      bytesSent: timings.bytesDone,
    };
  }

  #submitGeneration(request: LlmRequest, seeds: BigUint64Array): void {
    let verification: Promise<void> | null = null;
    this.#server.executor.submit(request, {
      onFirstToken: (_, __, atMs) => {
        this.#say({ kind: 'firstToken', key: request.id, atMs });
        verification = this.#verify(request, seeds);
      },
      onFinished: (_, outcome) => {
        this.#settled.delete(request);
        if (outcome === 'completed' && verification !== null) return;
        this.#say({ kind: 'requestFailed', key: request.id, error: describeError(request.error) });
      },
    });
  }

  async #verify(request: LlmRequest, seeds: BigUint64Array): Promise<void> {
    const { cache } = this.#server;
    cache.pin(request.id);
    try {
      const report = await verifyReceivedPages(this.#server, request, seeds);
      this.#say({ kind: 'generationDone', key: request.id, report });
    } catch (error) {
      this.#say({ kind: 'requestFailed', key: request.id, error: describeError(error) });
    } finally {
      cache.unpin(request.id);
    }
  }
}

export function describeError(error: unknown): ReportedError {
  if (error instanceof KvTransceiverError) return { name: error.name, code: error.code, message: error.message };
  if (error instanceof Error) return { name: error.name, code: '', message: error.message };
  return { name: 'Error', code: '', message: error === null ? 'ended without a reason' : String(error) };
}
