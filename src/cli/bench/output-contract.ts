import type { CopyExplanation, PathAlternative } from '../../agent/transfer-agent.js';
import type { Percentiles } from './statistics.js';

/** Version of the JSON below. Scripts and dashboards read it: a change of meaning is a new number. */
export const OUTPUT_SCHEMA = 1;

export interface MachineInfo {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGiB: number;
  readonly kernel: string;
  readonly node: string;
  readonly gpus: readonly { readonly name: string; readonly driver: string; readonly link: string }[];
  readonly nixl: { readonly version: string; readonly path: string } | null;
}

/** The head that all benches share. */
export interface BenchOutput<Row> {
  readonly schema: typeof OUTPUT_SCHEMA;
  readonly bench: string;
  readonly version: string;
  readonly commit: string;
  readonly startedAt: string;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly machine: MachineInfo;
  readonly results: readonly Row[];
  readonly ratios: Readonly<Record<string, Readonly<Record<string, number>>>>;
  readonly checks: readonly Check[];
  /** Which paths slices took, and why; absent where a bench moves no slices between servers. */
  readonly paths?: readonly TakenPath[];
  /** True when the run was stopped before its end: `results` hold what was measured until then. */
  readonly interrupted: boolean;
}

/** One statement the bench tested on its own figures. */
export interface Check {
  readonly name: string;
  /** Which row or pair of rows it is about, for example `8192`. */
  readonly subject: string;
  readonly met: boolean;
  /** Whether a failure makes the exit code 1. Figures of speed are judged only on request. */
  readonly judged: boolean;
  readonly value: number;
  readonly bound: number;
  /** How value and bound compare when the check is met. */
  readonly relation: '<=' | '>=' | '=';
}

/** The path that slices of one context rank took to one peer. */
export interface TakenPath {
  readonly rank: number;
  readonly peer: string;
  readonly path: string;
  readonly reason: string;
  readonly copy?: CopyExplanation;
  readonly alternatives?: readonly PathAlternative[];
  readonly advice?: readonly string[];
}

export type TtftVariant = 'monolithic' | 'pipelined' | 'pipelined-early-prefix' | 'ideal';

export interface TtftRow {
  readonly variant: TtftVariant;
  readonly model: string;
  /** How each side splits the model, in words; `contextRanks` and `generationRanks` live in one process each. */
  readonly contextShape: string;
  readonly contextRanks: number;
  readonly generationShape: string;
  readonly generationRanks: number;
  /** Null for a trace, whose prompts differ in length. */
  readonly promptTokens: number | null;
  readonly chunkTokens: number;
  readonly prefixHit: number;
  readonly concurrency: number;
  readonly agent: 'host' | 'nixl';
  readonly path: string;
  readonly requests: number;
  readonly failed: number;
  /** Slices of one request (the median where requests differ). */
  readonly slices: number;
  readonly ttftMs: Percentiles | null;
  readonly prefillMs: Percentiles | null;
  readonly transferMs: Percentiles | null;
  readonly exposedTailMs: Percentiles | null;
  readonly lastSliceMs: Percentiles | null;
  /** 1 - exposed tail / transfer of the monolithic variant, medians; null without that variant. */
  readonly hiddenShare: number | null;
  readonly bytesPlanned: number;
  readonly bytesSent: number;
  readonly bytesVerified: number;
  readonly wrongBytes: number;
  readonly samples: readonly TtftSample[];
}

/** What one context rank wrote of a request. `bytesExpected` is counted from the shapes, by the driver. */
export interface WriterRank {
  readonly rank: number;
  readonly bytesExpected: number;
  readonly bytesPlanned: number;
  readonly bytesSent: number;
}

/** What one generation rank got of a request. */
export interface ReceiverRank {
  readonly rank: number;
  readonly bytesExpected: number;
  readonly bytesVerified: number;
  readonly wrongBytes: number;
}

/** One chunk of a prompt on the context server's engine. */
export interface TimelineChunk {
  readonly tokenBegin: number;
  readonly tokenEnd: number;
  readonly startMark: number;
  readonly endMark: number;
}

/** One slice of one context rank to one receiver. */
export interface TimelineSlice {
  readonly rank: number;
  readonly seq: number;
  readonly kind: 'early-prefix' | 'chunk' | 'last';
  /** Index into the chunks; null for an early prefix. */
  readonly chunk: number | null;
  readonly bytes: number;
  readonly submittedMark: number;
  /** Null: nothing had to move. */
  readonly postedMark: number | null;
  readonly finishedMark: number | null;
}

export interface RequestTimeline {
  readonly chunks: readonly TimelineChunk[];
  readonly slices: readonly TimelineSlice[];
}

/** `rejected`: a server refused it, because it can never fit its pool, or the queue was full. */
export type SampleOutcome = 'completed' | 'failed' | 'rejected';

/** One request as it was measured. Marks are ms after it arrived, on the machine's monotonic clock. */
export interface TtftSample {
  readonly request: number;
  /** Of a replay whose variants take turns; absent in files of versions that replayed each at once: 0. */
  readonly round?: number;
  readonly seed: string;
  /** When it arrived, ms after the first request of the run. */
  readonly arrivedAtMs: number;
  /** Until the coordinator sent it on: all places were taken. */
  readonly waitMs: number;
  readonly promptTokens: number;
  /** Prompt tokens found in each server's cache. */
  readonly contextCachedTokens: number;
  readonly generationCachedTokens: number;
  readonly outcome: SampleOutcome;
  readonly error: string | null;
  readonly slices: number;
  readonly ttftMs: number;
  readonly queueMs: number;
  readonly prefillMs: number;
  readonly transferMs: number;
  readonly exposedTailMs: number;
  readonly lastSliceMs: number;
  readonly bytesPlanned: number;
  readonly bytesSent: number;
  readonly bytesVerified: number;
  readonly wrongBytes: number;
  /** The same by flat rank; empty for a side that said nothing. */
  readonly contextRanks: readonly WriterRank[];
  readonly generationRanks: readonly ReceiverRank[];
  /** Where the first wrong byte is, or null. */
  readonly firstWrong: string | null;
  readonly chunkEndMarks: readonly number[];
  readonly firstPostMark: number | null;
  readonly lastSlicePostMark: number | null;
  readonly lastByteMark: number | null;
  readonly tail: TailMarks;
  readonly generatedTokens: number;
  /** From each generated token to the next one. */
  readonly tokenGapsMs: readonly number[];
  /** The last token was out. */
  readonly finishedMark: number | null;
  /** Null where a row has more than a report needs. */
  readonly timeline: RequestTimeline | null;
}

/** What comes between the last byte and the first token, in the order in which it can come. Marks as those of the sample. */
export interface TailMarks {
  readonly auxPosted: number | null;
  readonly auxDone: number | null;
  /** The context server's JS thread heard of the last byte. */
  readonly lastByteHeard: number | null;
  readonly reportSent: number | null;
  readonly reportRead: number | null;
  /** The generation server's transfer ended. */
  readonly settled: number | null;
}
