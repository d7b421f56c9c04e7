import type {
  ReceiverRank,
  RequestTimeline,
  SampleOutcome,
  TailMarks,
  TtftSample,
  WriterRank,
} from '../output-contract.js';
import type { ExpectedTransfer } from '../shape/expected-transfer.js';
import { sum } from '../statistics.js';
import {
  CANCELLED_NAME,
  type ContextReport,
  type GenerationReport,
  type ReportedError,
  type WorkerEvent,
} from './worker-messages.js';
import type { PlannedRequest } from './workload.js';

const NO_MARKS: TailMarks = {
  auxPosted: null,
  auxDone: null,
  lastByteHeard: null,
  reportSent: null,
  reportRead: null,
  settled: null,
};
/** Of a request that can never fit the pool. */
const REFUSED_CODE = 'ERR_KVT_REQUEST_TOO_LARGE';

/** When a request came and went on, on the driver's clock. */
export interface SubmissionTimes {
  /** Of the run's first request. */
  readonly runStartedMs: number;
  readonly arrivedMs: number;
  readonly submittedMs: number;
}

/**
 * Collects what both servers say about one request until the sample is complete: both reports, or a failure and whatever the other side
 * says until the driver stops waiting.
 */
export class RequestMeasurement {
  readonly planned: PlannedRequest;
  readonly complete: Promise<void>;
  readonly #times: SubmissionTimes;
  readonly #expected: Pick<ExpectedTransfer, 'of'>;
  #resolve: () => void = () => {};
  #firstTokenMs: number | null = null;
  #context: ContextReport | null = null;
  #generation: GenerationReport | null = null;
  readonly #failures = new Map<string, ReportedError>();
  #outcomeListener: () => void = () => {};

  constructor(planned: PlannedRequest, times: SubmissionTimes, expected: Pick<ExpectedTransfer, 'of'>) {
    this.#expected = expected;
    this.planned = planned;
    this.#times = times;
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
      case 'described':
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

  /** Whether the server has said how the request ended there. */
  isOverFor(role: 'context' | 'generation'): boolean {
    return role === 'context' ? this.#contextOver() : this.#generationOver();
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
    const all = [...this.#failures];
    // One that was taken back only followed the other's failure.
    const causes = all.filter(([, error]) => error.name !== CANCELLED_NAME);
    return (causes.length > 0 ? causes : all)
      .map(([role, error]) => `${role}: ${error.name}: ${error.message}`)
      .join('; ');
  }

  /** The sample as far as it is known; `lostBecause` says why nothing more is expected of an incomplete one. */
  sample(lostBecause: string): TtftSample {
    const { planned } = this;
    const context = this.#context;
    const generation = this.#generation;
    const { contextRanks, generationRanks } = this.#ranks();
    const head = {
      request: planned.request,
      round: planned.round ?? 0,
      seed: planned.seed.toString(),
      arrivedAtMs: this.#times.arrivedMs - this.#times.runStartedMs,
      waitMs: this.#times.submittedMs - this.#times.arrivedMs,
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
        outcome: this.#failedOutcome(),
        error: this.#failures.size > 0 ? this.describeFailures() : lostBecause,
        slices: context?.sliceCount ?? 0,
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
        generatedTokens: 0,
        tokenGapsMs: [],
        finishedMark: null,
        timeline: null,
      };
    }
    const mark = (atMs: number): number => atMs - this.#times.arrivedMs;
    const markOf = (atMs: number | null): number | null => (atMs === null ? null : mark(atMs));
    const prefillEndMs = context.chunks.at(-1)?.endMs ?? context.prefillStartMs;
    const { tokensMs } = generation;
    const { firstPostMs, lastSlicePostMs, lastByteMs } = context;
    return {
      ...head,
      outcome: 'completed',
      error: null,
      slices: context.sliceCount,
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
      chunkEndMarks: context.chunks.map(({ endMs }) => mark(endMs)),
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
      generatedTokens: tokensMs.length,
      tokenGapsMs: tokensMs.slice(1).map((atMs, index) => roundedMs(atMs - (tokensMs[index] ?? atMs))),
      finishedMark: mark(Math.max(...tokensMs, this.#firstTokenMs)),
      timeline: timelineOf(context, mark),
    };
  }

  #failedOutcome(): SampleOutcome {
    return [...this.#failures.values()].some(({ code }) => code === REFUSED_CODE) ? 'rejected' : 'failed';
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

function timelineOf({ chunks, slices }: ContextReport, mark: (atMs: number) => number): RequestTimeline {
  return {
    chunks: chunks.map(({ tokenBegin, tokenEnd, startMs, endMs }) => ({
      tokenBegin,
      tokenEnd,
      startMark: mark(startMs),
      endMark: mark(endMs),
    })),
    slices: slices.map(({ submittedMs, postedMs, finishedMs, ...slice }) => ({
      ...slice,
      submittedMark: mark(submittedMs),
      postedMark: postedMs === null ? null : mark(postedMs),
      finishedMark: finishedMs === null ? null : mark(finishedMs),
    })),
  };
}

/** To the microsecond: thousands of them go into a report. */
function roundedMs(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
