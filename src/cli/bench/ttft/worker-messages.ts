import type { PathExplanation } from '../../../agent/transfer-agent.js';
import type { CacheGroupStats } from '../../../cache/kv-cache-manager.js';
import type { StepSchedule } from '../../../executor/executor-options.js';
import type { TransferPolicy } from '../../../executor/request.js';
import type { PromptSource } from '../prompt-source.js';
import type { SlotCounts } from '../shape/rank-layout.js';
import type { SideShape } from '../shape/side-shape.js';
import type { StandingPrompt } from '../trace/standing-prompts.js';

/** What one server of a run, with all its ranks, is built from. */
export interface WorkerSettings {
  readonly role: 'context' | 'generation';
  readonly model: string;
  readonly agent: 'host' | 'nixl';
  /** Of each rank. */
  readonly linkGbps: number | null;
  /** Arena of each rank that every slice goes through; null = none. */
  readonly bounceMb: number | null;
  /** The GPU of the pages; absent = host memory. */
  readonly device?: number;
  /** Device memory: the one path that is allowed; absent = the cheapest. */
  readonly path?: 'p2p' | 'rdma';
  /** Device memory: multiprocessors of a p2p copy. */
  readonly copyBlocks?: number;
  /** `gemm` computes on `device`. */
  readonly engine: 'paced' | 'gemm';
  /** Tokens of the longest prompt. */
  readonly maxPromptTokens: number;
  readonly shape: SideShape;
  /** Of each rank. */
  readonly slots: SlotCounts;
  /** The other server's: what was moved of the last block depends on the smaller of the two. */
  readonly peerTokensPerBlock: number;
  readonly chunkTokens: number;
  readonly schedule: StepSchedule;
  /** Most tokens of one step; default: one chunk's. */
  readonly tokenBudget?: number;
  /** Most prompt tokens being received at once; default: no limit. */
  readonly maxTokensInBuffer?: number;
  /** Whether blocks of earlier prompts are found again; default true. */
  readonly reusesPrefixes?: boolean;
  readonly tflops: number;
  readonly concurrency: number;
  /** Of the first rank, the others take the ports that follow; 0 = free ports. */
  readonly listenPort: number;
  readonly seed: number;
}

/** Driver to worker. */
export type WorkerCommand =
  | { readonly kind: 'start'; readonly settings: WorkerSettings }
  /** Makes the prompt and, when `warmTokens` > 0, a cached prefix of it with the right content. Answered by `prepared`. */
  | { readonly kind: 'prepare'; readonly key: number; readonly prompt: PromptSource; readonly warmTokens: number }
  /** Gives the cache prompts one after the other, as requests of theirs would have left them. Answered by `prepared`. */
  | { readonly kind: 'restore'; readonly key: number; readonly prompts: readonly StandingPrompt[] }
  | {
      readonly kind: 'submit';
      readonly key: number;
      readonly disaggRequestId: bigint;
      readonly contextEndpoint: string;
      readonly policy: TransferPolicy;
      /** Tokens to generate, the first one included. */
      readonly maxTokens: number;
    }
  /** The other server will not do its part of the request. */
  | { readonly kind: 'cancel'; readonly key: number }
  /** Answered by `described`. */
  | { readonly kind: 'describe' }
  | { readonly kind: 'stop'; readonly deadlineMs: number };

/** Name of the error of a request that the driver took back. */
export const CANCELLED_NAME = 'Cancelled';

export interface ReportedError {
  readonly name: string;
  readonly code: string;
  readonly message: string;
}

/** What one context rank planned and sent of a request. */
export interface WriterBytes {
  readonly rank: number;
  readonly bytesPlanned: number;
  readonly bytesSent: number;
}

/** What one generation rank found in its pages of a request. */
export interface ReceiverBytes {
  readonly rank: number;
  readonly bytesVerified: number;
  readonly wrongBytes: number;
}

/** One chunk of a prompt on the engine. */
export interface ReportedChunk {
  readonly tokenBegin: number;
  readonly tokenEnd: number;
  readonly startMs: number;
  readonly endMs: number;
}

/** One slice of one rank to one receiver. */
export interface ReportedSlice {
  readonly rank: number;
  readonly seq: number;
  readonly kind: 'early-prefix' | 'chunk' | 'last';
  /** Index into the request's chunks; null for an early prefix. */
  readonly chunk: number | null;
  readonly bytes: number;
  readonly submittedMs: number;
  /** Null: nothing had to move. */
  readonly postedMs: number | null;
  readonly finishedMs: number | null;
}

/** Which path slices of one rank to one receiver took, and why. */
export interface ReportedPath extends PathExplanation {
  readonly rank: number;
  readonly peer: string;
}

/** What the context server saw of one request, all its ranks together. CLOCK_MONOTONIC ms. */
export interface ContextReport {
  readonly cachedTokens: number;
  readonly prefillStartMs: number;
  /** A chunk ends when the last rank's forward does. */
  readonly chunks: readonly ReportedChunk[];
  readonly firstPostMs: number | null;
  readonly lastSlicePostMs: number | null;
  readonly lastByteMs: number | null;
  readonly tail: {
    readonly lastHeardMs: number | null;
    readonly auxPostedMs: number | null;
    readonly auxDoneMs: number | null;
    readonly reportSentMs: number | null;
  };
  /** Of the rank with most. */
  readonly sliceCount: number;
  /** Of every rank, to each of its receivers. */
  readonly slices: readonly ReportedSlice[];
  readonly ranks: readonly WriterBytes[];
}

/** What the generation server found, all its ranks together. */
export interface GenerationReport {
  /** CLOCK_MONOTONIC ms. */
  readonly tail: { readonly reportReadMs: number | null; readonly settledMs: number | null };
  readonly cachedTokens: number;
  readonly firstWrong: string | null;
  readonly ranks: readonly ReceiverBytes[];
  /** When each generated token could go to the user; one that several ranks deliver counts when the last of them has. */
  readonly tokensMs: readonly number[];
}

export type ServerDescription = Extract<WorkerEvent, { kind: 'described' }>;

/** Worker to driver. */
export type WorkerEvent =
  /** `endpoint`: of the first rank. */
  | { readonly kind: 'ready'; readonly endpoint: string; readonly path: string }
  | { readonly kind: 'prepared'; readonly key: number }
  /** Every rank has delivered the first token; `atMs` is the last one's. */
  | { readonly kind: 'firstToken'; readonly key: number; readonly atMs: number }
  | { readonly kind: 'contextDone'; readonly key: number; readonly report: ContextReport }
  | { readonly kind: 'generationDone'; readonly key: number; readonly report: GenerationReport }
  | { readonly kind: 'requestFailed'; readonly key: number; readonly error: ReportedError }
  /** So far. `cache`: of the first rank, by layer group. */
  | {
      readonly kind: 'described';
      readonly paths: readonly ReportedPath[];
      readonly cache: readonly CacheGroupStats[];
    }
  /** The worker cannot go on; it ends after this. */
  | { readonly kind: 'fatal'; readonly error: ReportedError }
  | { readonly kind: 'stopped'; readonly drained: boolean };
