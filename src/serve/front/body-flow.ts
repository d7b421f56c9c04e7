import type { Readable } from 'node:stream';
import type { Clock, Timer } from '../../clock.js';
import { ApiError } from './openai-error.js';

/** Longest pause within a body: what is held for it is held from others. */
export const BODY_STALL_MS = 5000;
/**
 * Role: the pieces of one body as Node reads them, until it is whole.
 * Why: a stream of the web costs promises for each piece, and a client decides how many pieces there are.
 * Invariant: it is never paused. Node counts the bytes of what waits in a stream, and would let a client fill it with as many pieces.
 * Ordering: what `onPiece` throws ends it; the rest of the body runs off and is kept nowhere, until somebody ends the connection.
 */
export class BodyFlow {
  readonly #body: Readable;
  readonly #clock: Clock;
  readonly #onPiece: (piece: Uint8Array) => void;
  #lastMs: number;
  #timer: Timer | null = null;

  /** @param onPiece is handed the reader's memory, which it may not keep */
  constructor(body: Readable, clock: Clock, onPiece: (piece: Uint8Array) => void) {
    this.#body = body;
    this.#clock = clock;
    this.#onPiece = onPiece;
    this.#lastMs = clock.now();
  }

  /** @throws ApiError 408 when nothing comes for too long, 499 when the client left before the end; what `onPiece` throws */
  async whole(): Promise<void> {
    const body = this.#body;
    // It may have come to nothing while its request waited to be looked at, and says so once.
    if (body.destroyed) throw gone();
    let stop = (): void => {};
    try {
      await new Promise<void>((resolve, reject) => {
        const onData = (piece: Uint8Array): void => {
          try {
            this.#take(piece);
          } catch (error) {
            reject(error as Error);
            stop();
          }
        };
        const onGone = (): void => reject(gone());
        stop = (): void => {
          body.off('data', onData).off('end', resolve).off('close', onGone);
          body.resume();
        };
        body.on('end', resolve).on('close', onGone).on('error', onGone).on('data', onData);
        this.#watch(reject);
      });
    } finally {
      this.#timer?.cancel();
      stop();
    }
  }

  #take(piece: Uint8Array): void {
    this.#lastMs = this.#clock.now();
    this.#onPiece(piece);
  }

  /** One timer for all pieces. */
  #watch(reject: (error: Error) => void): void {
    const leftMs = this.#lastMs + BODY_STALL_MS - this.#clock.now();
    if (leftMs <= 0) reject(new ApiError(408, `nothing of the body came for ${BODY_STALL_MS} ms`));
    else this.#timer = this.#clock.setTimer(leftMs, () => this.#watch(reject));
  }
}

/** The connection broke, or was cut off for its slowness: nobody's bug, and no news for a log. */
function gone(): ApiError {
  return new ApiError(499, 'the client is gone');
}
