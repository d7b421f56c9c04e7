import type { Clock } from '../../clock.js';
import { JsonScan } from './json-scan.js';

/** Bytes that are looked at in one turn of the event loop. */
const TURN_BYTES = 128 * 1024;

/**
 * Role: looks at a body while it comes, so that one that would build too much is refused early, and holds no turn of the event loop for long.
 * Ordering: what a turn has no room for is looked at in a later one; `finish` leaves nothing.
 */
export class BodyScan {
  readonly #clock: Clock;
  readonly #scan: JsonScan;
  #seenBytes = 0;
  #leftBytes = TURN_BYTES;
  #isRenewing = false;

  /** @param maxValues entries of all lists and maps together */
  constructor(clock: Clock, maxValues: number) {
    this.#clock = clock;
    this.#scan = new JsonScan(maxValues);
  }

  /** @param bytes all that came so far @throws ApiError 400 for what would build too much */
  look(bytes: Uint8Array): void {
    const end = Math.min(bytes.length, this.#seenBytes + this.#leftBytes);
    if (end === this.#seenBytes) return;
    this.#scan.push(bytes.subarray(this.#seenBytes, end));
    this.#leftBytes -= end - this.#seenBytes;
    this.#seenBytes = end;
    if (this.#isRenewing) return;
    this.#isRenewing = true;
    void this.#clock.nextTurn().then(() => {
      this.#isRenewing = false;
      this.#leftBytes = TURN_BYTES;
    });
  }

  /** @param bytes all of the body @throws as `look` */
  async finish(bytes: Uint8Array): Promise<void> {
    for (this.look(bytes); this.#seenBytes < bytes.length; this.look(bytes)) await this.#clock.nextTurn();
  }
}
