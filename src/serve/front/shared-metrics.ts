import type { Clock } from '../../clock.js';

/**
 * Role: the metrics of all processes, made once for everybody who asks meanwhile and for some time after.
 * Why: a text costs each process some milliseconds in which no token leaves it, and whoever reaches the front may ask as often as it likes.
 */
export class SharedMetrics {
  readonly #clock: Clock;
  readonly #ageMs: number;
  readonly #make: () => Promise<string>;
  #text: Promise<Uint8Array<ArrayBuffer>> | null = null;
  /** Null: it is being made. */
  #madeAtMs: number | null = null;

  /**
   * @param ageMs for how long a text is handed out after it was made; 0: only to those who asked before
   * @param make one text; one that it fails to make is not kept
   */
  constructor(clock: Clock, ageMs: number, make: () => Promise<string>) {
    this.#clock = clock;
    this.#ageMs = ageMs;
    this.#make = make;
  }

  /** As UTF-8: hundreds of KiB, which need not be encoded for each who asks. */
  get(): Promise<Uint8Array<ArrayBuffer>> {
    const isOld = this.#madeAtMs !== null && this.#clock.now() - this.#madeAtMs >= this.#ageMs;
    if (this.#text === null || isOld) this.#text = this.#made();
    return this.#text;
  }

  async #made(): Promise<Uint8Array<ArrayBuffer>> {
    this.#madeAtMs = null;
    try {
      return new TextEncoder().encode(await this.#make());
    } catch (error) {
      this.#text = null;
      throw error;
    } finally {
      this.#madeAtMs = this.#clock.now();
    }
  }
}
