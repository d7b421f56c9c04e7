import type { ConfigFacts } from '../facts.js';
import type { ConfigWarning } from '../problem.js';
import type { RouterName } from './disagg-schema.js';

/** The servers of one role. */
export interface DisaggServerGroup {
  readonly role: 'context' | 'generation';
  /** `host:port` of servers that run already; empty when they are started from this file. */
  readonly urls: readonly string[];
  readonly instanceCount: number;
  /** `tensorParallelSize * pipelineParallelSize * contextParallelSize`. */
  readonly ranksPerInstance: number;
  readonly router: RouterName;
  readonly tensorParallelSize: number;
  readonly pipelineParallelSize: number;
  readonly contextParallelSize: number;
  readonly enableAttentionDp: boolean;
  readonly enableChunkedPrefill: boolean;
  /** Tokens of one forward step. Default 2048. */
  readonly maxNumTokens: number;
  readonly maxBeamWidth: number;
  /** Of its executors. Default plain. `disable_overlap_scheduler: false` is another way to say overlap. */
  readonly schedule: 'plain' | 'overlap';
  /** Settings of the engine, passed on as they are. */
  readonly engine: Readonly<Record<string, unknown>>;
  /** What `resolveCacheTransceiverConfig` is given on the machine of the server, which knows what it has. It was accepted here. */
  readonly cacheTransceiverConfig: Readonly<Record<string, unknown>>;
}

/** A disaggregation file with every default applied. */
export interface DisaggConfig {
  /** Where the coordinator listens. Default 127.0.0.1:8000. */
  readonly hostname: string;
  readonly port: number;
  readonly scheduleStyle: 'context_first' | 'generation_first';
  /** Further tries of a request that failed for a reason that may pass. Default 1. */
  readonly maxRetries: number;
  /** Of the request ids. 0 .. 255, default 0. */
  readonly nodeId: number;
  readonly context: DisaggServerGroup;
  readonly generation: DisaggServerGroup;
  readonly warnings: readonly ConfigWarning[];
}

/** What a disaggregation file is read with. */
export interface DisaggFileOptions {
  /** For messages. Default `disagg.yaml`. */
  readonly fileName?: string;
  /** From the command line; wins over the file, and is checked like it. */
  readonly scheduleStyle?: string;
  /** Likewise. */
  readonly port?: number;
  /** What is known of the machines; left out: what every machine could have. */
  readonly facts?: Pick<ConfigFacts, 'nixlAvailable' | 'nixlReason'>;
}
