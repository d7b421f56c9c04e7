import type { ReceiverRank, TailMarks, TtftSample, WriterRank } from '../output-contract.js';
import type { ExpectedTransfer } from '../shape/expected-transfer.js';
import { sum } from '../statistics.js';
import type { ContextReport, GenerationReport, ReportedError, WorkerEvent } from './worker-messages.js';
import type { PlannedRequest } from './workload.js';

const NO_MARKS: TailMarks = {
  auxPosted: null,
  auxDone: null,
  lastByteHeard: null,
  reportSent: null,
  reportRead: null,
  settled: null,
};

/**
 * Collects what both servers say about one request until the sample is complete: both reports, or a failure and whatever the other side
 * says until the driver stops waiting.
 */
export class RequestMeasurement {
  readonly planned: PlannedRequest;
  readonly submittedMs: number;
  readonly complete: Promise<void>;
  readonly #expected: Pick<ExpectedTransfer, 'of'>;
  #resolve: () => void = () => {};
  #firstTokenMs: number | null = null;
  #context: ContextReport | null = null;
  #generation: GenerationReport | null = null;
  readonly #failures = new Map<string, ReportedError>();
  #outcomeListener: () => void = () => {};

  constructor(planned: PlannedRequest, submittedMs: number, expected: Pick<ExpectedTransfer, 'of'>) {
    this.#expected = expected;
    this.planned = planned;
    this.submittedMs = submittedMs;
    this.complete = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  accept(role: string, event: WorkerEvent): void {
    switch (event.kind) {
      case 'firstToken':
        this.#firstTokenMs = event.atMs;
        break;
      case 'contextDone':
        this.#context = event.report;
        break;
      case 'generationDone':
        this.#generation = event.report;
        break;
      case 'requestFailed':
        this.#failures.set(role, event.error);
        break;
      case 'ready':
      case 'prepared':
      case 'fatal':
      case 'stopped':
        return;
    }
    this.#outcomeListener();
    if (this.#contextOver() && this.#generationOver()) this.#resolve();
  }

  #contextOver(): boolean {
    return this.#context !== null || this.#failures.has('context');
  }

  #generationOver(): boolean {
    return this.#generation !== null || this.#failures.has('generation');
  }

  /** Resolves when the server that is not `role` has said how the request ended there. */
  heardFromOtherThan(role: string): Promise<void> {
    return new Promise((resolve) => {
      this.#outcomeListener = () => {
        if (role === 'context' ? this.#generationOver() : this.#contextOver()) resolve();
      };
      this.#outcomeListener();
    });
  }

  /** What the servers said about the failure, or ''. */
  describeFailures(): string {
    return [...this.#failures].map(([role, error]) => `${role}: ${error.name}: ${error.message}`).join('; ');
  }

  /** The sample as far as it is known; `lostBecause` says why nothing more is expected of an incomplete one. */
  sample(lostBecause: string): TtftSample {
    const { planned } = this;
    const context = this.#context;
    const generation = this.#generation;
    const { contextRanks, generationRanks } = this.#ranks();
    const head = {
      request: planned.request,
      seed: planned.seed.toString(),
      promptTokens: planned.prompt.tokenCount,
      contextCachedTokens: context?.cachedTokens ?? 0,
      generationCachedTokens: generation?.cachedTokens ?? 0,
      bytesPlanned: sum(contextRanks.map((rank) => rank.bytesPlanned)),
      bytesSent: sum(contextRanks.map((rank) => rank.bytesSent)),
      bytesVerified: sum(generationRanks.map((rank) => rank.bytesVerified)),
      wrongBytes: sum(generationRanks.map((rank) => rank.wrongBytes)),
      contextRanks,
      generationRanks,
      firstWrong: generation?.firstWrong ?? null,
    };
    if (context === null || generation === null || this.#firstTokenMs === null || this.#failures.size > 0) {
      return {
        ...head,
        outcome: 'failed',
        error: this.#failures.size > 0 ? this.describeFailures() : lostBecause,
        slices: context?.slices ?? 0,
        ttftMs: 0,
        queueMs: 0,
        prefillMs: 0,
        transferMs: 0,
        exposedTailMs: 0,
        lastSliceMs: 0,
        chunkEndMarks: [],
        firstPostMark: null,
        lastSlicePostMark: null,
        lastByteMark: null,
        tail: NO_MARKS,
      };
    }
    const mark = (atMs: number): number => atMs - this.submittedMs;
    const markOf = (atMs: number | null): number | null => (atMs === null ? null : mark(atMs));
    const prefillEndMs = context.chunkEndsMs.at(-1) ?? context.prefillStartMs;
    const { firstPostMs, lastSlicePostMs, lastByteMs } = context;
    return {
      ...head,
      outcome: 'completed',
      error: null,
      slices: context.slices,
      ttftMs: mark(this.#firstTokenMs),
      queueMs: mark(context.prefillStartMs),
      prefillMs: prefillEndMs - context.prefillStartMs,
      // A slice that moves nothing is posted nowhere: its wire time is zero.
      transferMs: firstPostMs === null || lastByteMs === null ? 0 : lastByteMs - firstPostMs,
      exposedTailMs: this.#firstTokenMs - prefillEndMs,
      lastSliceMs:
        lastSlicePostMs === null || lastByteMs === null
          ? 0
          : // Posted before the end of its chunk, it waited on the GPU until then.
            lastByteMs - Math.max(lastSlicePostMs, prefillEndMs),
      chunkEndMarks: context.chunkEndsMs.map(mark),
      firstPostMark: markOf(firstPostMs),
      lastSlicePostMark: markOf(lastSlicePostMs),
      lastByteMark: markOf(lastByteMs),
      tail: {
        auxPosted: markOf(context.tail.auxPostedMs),
        auxDone: markOf(context.tail.auxDoneMs),
        lastByteHeard: markOf(context.tail.lastHeardMs),
        reportSent: markOf(context.tail.reportSentMs),
        reportRead: markOf(generation.tail.reportReadMs),
        settled: markOf(generation.tail.settledMs),
      },
    };
  }

  #ranks(): { readonly contextRanks: readonly WriterRank[]; readonly generationRanks: readonly ReceiverRank[] } {
    const [context, generation] = [this.#context, this.#generation];
    // What has to move depends on what the generation server had before, which only it can say.
    const expected = this.#expected.of(this.planned.prompt.tokenCount, generation?.cachedTokens ?? 0);
    return {
      contextRanks: (context?.ranks ?? []).map((bytes) => ({
        ...bytes,
        bytesExpected: expected.context[bytes.rank] ?? 0,
      })),
      generationRanks: (generation?.ranks ?? []).map((bytes) => ({
        ...bytes,
        bytesExpected: expected.generation[bytes.rank] ?? 0,
      })),
    };
  }
}
