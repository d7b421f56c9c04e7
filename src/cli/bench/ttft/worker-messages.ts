import type { TransferPolicy } from '../../../executor/request.js';
import type { PromptSource } from '../prompt-source.js';

/** What both servers of a run are built from. */
export interface WorkerSettings {
  readonly role: 'context' | 'generation';
  readonly model: string;
  readonly agent: 'host' | 'nixl';
  readonly linkGbps: number | null;
  /** The GPU of the pages; absent = host memory. */
  readonly device?: number;
  readonly tokensPerBlock: number;
  readonly chunkTokens: number;
  readonly slotCount: number;
  readonly poolLayout: 'per-layer' | 'per-block';
  readonly tflops: number;
  readonly concurrency: number;
  /** 0 = a free port. */
  readonly listenPort: number;
  readonly seed: number;
}

/** Driver to worker. */
export type WorkerCommand =
  | { readonly kind: 'start'; readonly settings: WorkerSettings }
  /** Makes the prompt and, when `warmTokens` > 0, a cached prefix of it with the right content. Answered by `prepared`. */
  | { readonly kind: 'prepare'; readonly key: number; readonly prompt: PromptSource; readonly warmTokens: number }
  | {
      readonly kind: 'submit';
      readonly key: number;
      readonly disaggRequestId: bigint;
      readonly contextEndpoint: string;
      readonly policy: TransferPolicy;
    }
  | { readonly kind: 'stop'; readonly deadlineMs: number };

export interface ReportedError {
  readonly name: string;
  readonly code: string;
  readonly message: string;
}

/** What the context server saw of one request. CLOCK_MONOTONIC ms. */
export interface ContextReport {
  readonly cachedTokens: number;
  readonly prefillStartMs: number;
  readonly chunkEndsMs: readonly number[];
  readonly firstPostMs: number | null;
  readonly lastSlicePostMs: number | null;
  readonly lastByteMs: number | null;
  readonly slices: number;
  readonly bytesPlanned: number;
  readonly bytesSent: number;
}

export interface GenerationReport {
  readonly cachedTokens: number;
  readonly bytesVerified: number;
  readonly wrongBytes: number;
  readonly firstWrong: string | null;
}

/** Worker to driver. */
export type WorkerEvent =
  | { readonly kind: 'ready'; readonly endpoint: string; readonly path: string }
  | { readonly kind: 'prepared'; readonly key: number }
  | { readonly kind: 'firstToken'; readonly key: number; readonly atMs: number }
  | { readonly kind: 'contextDone'; readonly key: number; readonly report: ContextReport }
  | { readonly kind: 'generationDone'; readonly key: number; readonly report: GenerationReport }
  | { readonly kind: 'requestFailed'; readonly key: number; readonly error: ReportedError }
  /** The worker cannot go on; it ends after this. */
  | { readonly kind: 'fatal'; readonly error: ReportedError }
  | { readonly kind: 'stopped'; readonly drained: boolean };
