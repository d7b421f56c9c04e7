import type { DataPath } from '../agent/transfer-agent.js';
import type { LlmRequest } from '../executor/request.js';
import type { TraceContext } from '../wire/trace-context.js';
import type { Settled } from './cache-transceiver.js';

/** Which end of a transfer this is. */
export type TransferSide = 'context' | 'generation';

/** One request's transfer at one end. Times are `Clock` ms. */
export interface TransferStart {
  readonly request: LlmRequest;
  /** What both ends call the request. */
  readonly rid: bigint;
  readonly side: TransferSide;
  readonly atMs: number;
  /** Of the request's own parameters; null when it has none, or what it has is not valid. */
  readonly trace: TraceContext | null;
}

/** A generation rank asked for a request's pages. */
export interface ReceiverAsked {
  readonly request: LlmRequest;
  readonly peer: string;
  /** What its REQUEST_DATA carries; null when that is nothing, or not valid. */
  readonly trace: TraceContext | null;
}

/** One slice that moves something, or the aux content, to one receiver has ended. Times are CLOCK_MONOTONIC ms. */
export interface SliceEnd {
  readonly request: LlmRequest;
  readonly peer: string;
  /** Null for aux. */
  readonly seq: number | null;
  readonly isLast: boolean;
  /** Ordinals `[beginBlock, endBlock)`; 0, 0 for aux. */
  readonly beginBlock: number;
  readonly endBlock: number;
  readonly bytesPlanned: number;
  readonly bytes: number;
  readonly status: 'transferred' | 'failed' | 'cancelled';
  /** Null for aux, and where the agent cannot say. */
  readonly path: DataPath | null;
  readonly submittedAtMs: number;
  /** Null when nothing was posted. */
  readonly postedAtMs: number | null;
  readonly finishedAtMs: number | null;
  readonly errorCode: string | null;
}

/** Something that goes another way than it might (I9). Told once each. */
export interface FallbackNotice {
  /** `backend`: DEFAULT did not become NIXL. `config`: a setting without effect or with a risk. `agent`: a path or kernel. */
  readonly source: 'backend' | 'config' | 'agent';
  /** For people; names the reason. */
  readonly message: string;
}

/**
 * Hears what happens to the transfers of one transceiver. Handlers run on the JS thread, inside its work: they must be short and may not
 * call back into the transceiver. What they throw is counted (`observer_failures`) and goes nowhere else.
 */
export interface TransferObserver {
  /** @returns generation side: the `traceparent` for REQUEST_DATA. Undefined: the request's own */
  onStarted?(start: TransferStart): string | undefined;
  onReceiverAsked?(asked: ReceiverAsked): void;
  /** Context side: every expected receiver has asked. Generation side: every writer has begun. Ends the queue clock. */
  onPeersArrived?(request: LlmRequest, side: TransferSide, waitedMs: number): void;
  onSliceEnded?(slice: SliceEnd): void;
  /** The one outcome of each transfer. */
  onSettled?(settled: Settled): void;
  onPeerReady?(peer: string): void;
  /** @param isBusy some transfer waited for it */
  onPeerLost?(peer: string, message: string, isBusy: boolean): void;
  /** Earlier ones are told when the observer is attached. */
  onFallback?(notice: FallbackNotice): void;
  /** A counter of `TransceiverStats.counters` went up. */
  onCounted?(name: string): void;
}

type Handler = keyof TransferObserver;

/**
 * Role: who observes one transceiver.
 * Why: `current` is null while nobody does, so that a hook costs one comparison and makes none of its arguments.
 */
export class TransferObservers {
  readonly #attached = new Set<TransferObserver>();
  readonly #onFailure: () => void;
  #current: Required<TransferObserver> | null = null;

  /** @param onFailure a handler threw */
  constructor(onFailure: () => void) {
    this.#onFailure = onFailure;
  }

  get current(): Required<TransferObserver> | null {
    return this.#current;
  }

  get count(): number {
    return this.#attached.size;
  }

  /** @returns takes it away again; idempotent */
  attach(observer: TransferObserver): () => void {
    this.#attached.add(observer);
    this.#current ??= this.#fanOut();
    return () => {
      this.#attached.delete(observer);
      if (this.#attached.size === 0) this.#current = null;
    };
  }

  #fanOut(): Required<TransferObserver> {
    const tell =
      <H extends Handler>(handler: H) =>
      (...args: Parameters<Required<TransferObserver>[H]>): void =>
        void this.#tell(handler, args);
    return {
      onStarted: (start) => this.#tell('onStarted', [start]) as string | undefined,
      onReceiverAsked: tell('onReceiverAsked'),
      onPeersArrived: tell('onPeersArrived'),
      onSliceEnded: tell('onSliceEnded'),
      onSettled: tell('onSettled'),
      onPeerReady: tell('onPeerReady'),
      onPeerLost: tell('onPeerLost'),
      onFallback: tell('onFallback'),
      onCounted: tell('onCounted'),
    };
  }

  /** @returns the first answer that is one */
  #tell(handler: Handler, args: readonly unknown[]): unknown {
    let answer: unknown;
    for (const observer of this.#attached) {
      try {
        const said = (observer[handler] as ((...values: readonly unknown[]) => unknown) | undefined)?.apply(
          observer,
          args as unknown[],
        );
        answer ??= said;
      } catch {
        // An observer's trouble is not the transfer's.
        this.#onFailure();
      }
    }
    return answer;
  }
}
