import type { CoordinatorResult } from '../../coordinator/coordinator-request.js';
import type { CoordinatorCall, DisaggCoordinator } from '../../coordinator/disagg-coordinator.js';
import { InternalError } from '../../errors.js';
import { typedError } from '../../executor/typed-error.js';
import { StopMatcher } from '../text/stop-matcher.js';
import type { TextCodec, TokenDecoder } from '../text/text-codec.js';
import type { AnswerRequest } from './answer-request.js';
import { ApiError } from './openai-error.js';

/** Some more of an answer. */
export interface AnswerPiece {
  readonly text: string;
  readonly tokens: readonly number[];
}

/** How an answer ended. */
export interface AnswerEnd {
  readonly finishReason: 'stop' | 'length';
  readonly completionTokens: number;
  readonly cachedTokens: number;
  /** Tries it took; 1 without a retry. */
  readonly attempts: number;
}

type Phase =
  | { readonly kind: 'running' }
  /** The text is whole; the servers end the request, or are being told to. */
  | { readonly kind: 'stopping' }
  | { readonly kind: 'ended'; readonly end: AnswerEnd }
  | { readonly kind: 'failed'; readonly error: unknown };

/**
 * Role: one answer as text, from a coordinator's tokens.
 * Why: a reader that is slow must not cost memory: what comes meanwhile is kept as text of one string and handed over in one piece, at most
 *   `maxTokens` of it.
 * Ordering: the end of an answer is seen when its token arrives, not when it is read, so that nobody computes what nobody will get.
 * Invariant: what `next` has handed over is never taken back; while it has handed over nothing, a failed try may be repeated from the start.
 */
export class AnswerStream {
  readonly #endTokens: ReadonlySet<number>;
  readonly #codec: TextCodec;
  readonly #stop: readonly string[];
  readonly #call: CoordinatorCall;
  #decoder: TokenDecoder;
  #stops: StopMatcher;
  #phase: Phase = { kind: 'running' };
  #isHandedOver = false;
  #text = '';
  #tokens: number[] = [];
  #count = 0;
  #wake: () => void = () => {};

  constructor(coordinator: DisaggCoordinator, codec: TextCodec, request: AnswerRequest, traceparent: string) {
    this.#endTokens = request.ignoreEnd ? new Set() : codec.endTokens;
    this.#codec = codec;
    this.#stop = request.stop;
    this.#decoder = codec.decoder();
    this.#stops = new StopMatcher(request.stop);
    const { promptTokens, maxTokens, sampling } = request;
    this.#call = coordinator.submit({
      promptTokens,
      maxTokens,
      sampling,
      // The servers see the end where it is sampled; nothing is computed beyond it, and nothing has to be cancelled.
      stopTokens: [...this.#endTokens],
      traceparent,
      onToken: (token) => this.#onToken(token),
      takeBackTokens: () => this.#takeBack(),
    });
    void this.#call.result.then((result) => {
      try {
        this.#onResult(result);
      } catch (error) {
        // The codec could not end the text. Whoever reads the answer is told, and nobody else waits for it.
        this.#phase = { kind: 'failed', error: typedError(error, 'the answer cannot be shown as text') };
        this.#wake();
      }
    });
  }

  /** The servers know it by this, its newest try. */
  get id(): bigint {
    return this.#call.id;
  }

  /** Both servers are done with it. */
  get released(): Promise<void> {
    return this.#call.released;
  }

  /** Null before the answer is whole, and when it failed. */
  get end(): AnswerEnd | null {
    return this.#phase.kind === 'ended' ? this.#phase.end : null;
  }

  /** Nobody reads it any more. */
  cancel(): void {
    this.#call.cancel();
  }

  /** Waits for the first token, and hands over nothing. @throws what ended the answer before it had one */
  async begun(): Promise<void> {
    await this.#until(() => this.#count > 0);
  }

  /** What came since the last call; waits for something. Null: the answer is whole. @throws what ended it otherwise */
  async next(): Promise<AnswerPiece | null> {
    // Text without a token: what was held back until the end.
    const isMore = (): boolean => this.#tokens.length > 0 || this.#text !== '';
    await this.#until(isMore);
    return isMore() ? this.#handOver() : null;
  }

  /** All of it, of which nothing was handed over before. @throws what ended it otherwise */
  async whole(): Promise<AnswerPiece> {
    await this.#until(() => false);
    return this.#handOver();
  }

  /** Waits until `holds`, or the answer is whole. @throws what ended it otherwise, once what there was is handed over */
  async #until(holds: () => boolean): Promise<void> {
    while (!holds()) {
      if (this.#phase.kind === 'ended') return;
      if (this.#phase.kind === 'failed') throw this.#phase.error;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  #handOver(): AnswerPiece {
    this.#isHandedOver = true;
    const piece = { text: this.#text, tokens: this.#tokens };
    this.#text = '';
    this.#tokens = [];
    return piece;
  }

  /** A try failed. False: somebody has seen of it, or it has all that the answer needs. */
  #takeBack(): boolean {
    if (this.#isHandedOver || this.#phase.kind !== 'running') return false;
    this.#decoder = this.#codec.decoder();
    this.#stops = new StopMatcher(this.#stop);
    this.#text = '';
    this.#tokens = [];
    this.#count = 0;
    return true;
  }

  #onToken(token: number): void {
    if (this.#phase.kind !== 'running') {
      // A server that does not end where it was told to.
      this.#call.cancel();
      return;
    }
    this.#count += 1;
    this.#tokens.push(token);
    const isEnd = this.#endTokens.has(token);
    this.#text += isEnd ? this.#rest() : this.#stops.push(this.#decoder.push(token));
    if (isEnd || this.#stops.stopped) this.#phase = { kind: 'stopping' };
    if (this.#stops.stopped) this.#call.cancel();
    this.#wake();
  }

  #onResult({ outcome, error, usage, attempts, outputTokens }: CoordinatorResult): void {
    const end = { completionTokens: this.#count, cachedTokens: usage.cachedTokens, attempts };
    if (this.#phase.kind === 'stopping') this.#phase = { kind: 'ended', end: { ...end, finishReason: 'stop' } };
    else if (outcome === 'completed' && outputTokens.length === this.#count) {
      this.#text += this.#rest();
      this.#phase = { kind: 'ended', end: { ...end, finishReason: this.#stops.stopped ? 'stop' : 'length' } };
    } else this.#phase = { kind: 'failed', error: this.#failure(outcome, error, outputTokens.length) };
    this.#wake();
  }

  #failure(outcome: CoordinatorResult['outcome'], error: unknown, tokenCount: number): unknown {
    if (outcome === 'completed') return new InternalError(`${tokenCount} tokens were generated, ${this.#count} came`);
    return outcome === 'cancelled' ? new ApiError(499, 'the request was cancelled', { code: 'cancelled' }) : error;
  }

  /** What was held back: an incomplete character, or what might have become a stop string. */
  #rest(): string {
    return this.#stops.push(this.#decoder.end()) + this.#stops.end();
  }
}
