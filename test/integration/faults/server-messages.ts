/** What the tests tell a server process, and what it says. Plain JSON: request ids are decimal text. */
export type Role = 'context' | 'generation';

export interface ServerSettings {
  readonly role: Role;
  readonly agent: 'host' | 'nixl';
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  /** Host agent: the rate its writes are paced to, in gigabits a second. Null = not paced. */
  readonly linkGbps: number | null;
  /** Pages of a layer group that requests may have; as many canaries, and one more, lie around them. */
  readonly pageCount: number;
  readonly headDim: number;
  readonly limits: {
    readonly transferQueueTimeoutMs: number;
    readonly noProgressTimeoutMs: number;
    readonly kvTransferTimeoutMs: number;
  };
}

export const TOKENS_PER_BLOCK = 4;
/** Tokens that the windowed layer group sees. */
export const WINDOW_TOKENS = 10;
export const AUX_SLOTS = 64;

/** Requests of a stream have consecutive ids on both sides, so that nobody needs to tell a server of each. */
export interface StreamSettings {
  readonly firstRid: string;
  readonly count: number;
  readonly concurrency: number;
  readonly promptTokens: number;
  readonly chunkTokens: number;
  /** The context server; only looked at by generation servers. */
  readonly endpoint: string;
  /** A memory sample is taken after each so many requests. */
  readonly sampleEvery: number;
}

/**
 * A moment in the life of a note. At the context server: `armed`, it was left with the agent, which has announced it or is about to; `said`, the
 * agent has sent it and nobody else knows, so that no frame says the same yet. At the generation server: `heard`, before its transceiver has it;
 * `taken`, right after, before the frame is read.
 */
export type NoteMoment = 'armed' | 'said' | 'heard' | 'taken';

export type ServerCommand =
  | { readonly kind: 'open'; readonly settings: ServerSettings }
  /** Context: computes and sends the prompt. `holdBefore`: waits before that chunk until `continue`. */
  | {
      readonly kind: 'prefill';
      readonly rid: string;
      readonly promptTokens: number;
      readonly chunkTokens: number;
      readonly holdBefore: number | null;
    }
  | { readonly kind: 'continue'; readonly rid: string }
  /** Generation: receives it and checks every byte. */
  | { readonly kind: 'receive'; readonly rid: string; readonly promptTokens: number; readonly endpoint: string }
  /** The next time that this server comes to this moment, that process is killed (-9). */
  | { readonly kind: 'killAt'; readonly moment: NoteMoment; readonly pid: number }
  | { readonly kind: 'cancel'; readonly rid: string }
  | { readonly kind: 'stream'; readonly stream: StreamSettings }
  | { readonly kind: 'inspect' }
  /** Slow: collects garbage several times. */
  | { readonly kind: 'instances' }
  | { readonly kind: 'close' };

/** One terminal outcome, as the transceiver gave it. */
export interface OutcomeNews {
  readonly kind: 'outcome';
  readonly rid: string;
  readonly outcome: 'completed' | 'failed' | 'cancelled';
  readonly code: string | null;
  readonly message: string;
  /** Completed receives: every byte of the prompt's pages was compared. */
  readonly bytesChecked: number;
  readonly wrongBytes: number;
}

/** The slice of a chunk was handed to the agent (`sent`), or is waited with (`held`). */
export type ChunkNews =
  | { readonly kind: 'sent'; readonly rid: string; readonly chunk: number }
  | { readonly kind: 'held'; readonly rid: string; readonly chunk: number };

export type ServerNews = OutcomeNews | ChunkNews;

export interface MemorySample {
  /** Requests that had ended when it was taken. */
  readonly requests: number;
  readonly rssBytes: number;
  /** After a garbage collection. */
  readonly heapBytes: number;
  readonly externalBytes: number;
  readonly descriptors: number;
  /** Active handles and requests of the event loop, timers included. */
  readonly resources: number;
}

export interface StreamReport {
  readonly completed: number;
  readonly failed: number;
  readonly firstError: string | null;
  readonly wrongBytes: number;
  readonly bytesChecked: number;
  readonly durationMs: number;
  readonly samples: readonly MemorySample[];
}

/** Everything a server still holds. */
export interface Inspection {
  /** Requests whose outcome has not come. */
  readonly open: readonly string[];
  readonly held: number;
  readonly sendSessions: number;
  readonly receiveSessions: number;
  readonly freeAuxSlots: number;
  /** Per layer group. */
  readonly freePages: readonly number[];
  /** What was written to a page that nobody held, or next to one. */
  readonly violations: readonly string[];
  readonly peers: readonly string[];
  readonly counters: Readonly<Record<string, number>>;
  readonly warnings: readonly string[];
}

/** Objects of each session class that are alive after a garbage collection. */
export type LiveInstances = Readonly<Record<string, number>>;

export interface OpenReport {
  readonly endpoint: string;
}

export interface CloseNews {
  readonly drained: boolean;
  readonly outstanding: number;
}

export type ParentMessage = { readonly call: number; readonly command: ServerCommand };
export type ChildMessage =
  | { readonly kind: 'ready' }
  | { readonly kind: 'reply'; readonly call: number; readonly value: unknown }
  | { readonly kind: 'refusal'; readonly call: number; readonly error: string }
  | ServerNews;
