import { ApiError } from './openai-error.js';

/** What one body has of the budget. */
export interface BodyShare {
  /** @throws ApiError 429 when the bodies of all connections together have no room for that many more */
  grow(sizeBytes: number): void;
  /** Gives all of it back; may be called again. */
  end(): void;
}

/**
 * Role: bounds the bytes of all bodies that are being read.
 * Why: each connection may hold a body of the largest size until it is whole, and there may be thousands of connections.
 */
export class BodyBudget {
  readonly #limitBytes: number;
  #heldBytes = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  open(): BodyShare {
    let own = 0;
    return {
      grow: (sizeBytes) => {
        if (this.#heldBytes + sizeBytes > this.#limitBytes)
          throw new ApiError(429, 'the bodies of other requests are being read, as many as may; come back later', {
            code: 'bodies_full',
            retryAfterS: 1,
          });
        own += sizeBytes;
        this.#heldBytes += sizeBytes;
      },
      end: () => {
        this.#heldBytes -= own;
        own = 0;
      },
    };
  }
}
