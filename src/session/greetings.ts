import type { Clock } from '../clock.js';
import type { Hello } from '../wire/messages.js';
import { Repeater } from './repeater.js';

/** A HELLO and the wire minor of who sent it. */
export interface Claim {
  readonly hello: Hello;
  readonly minor: number;
}

export interface Greeting {
  readonly nonce: bigint;
  readonly startedAtMs: number;
  /** Nobody waits for this peer; it only shows which process answers at the endpoint of a live one. */
  probe: boolean;
  /** HELLO that claims to come from there, judged when the endpoint itself has answered. */
  claim: Claim | null;
}

/** Role: our HELLOs that are under way, one per endpoint, each with a nonce of its own, repeated until ended. */
export class Greetings {
  readonly #clock: Clock;
  readonly #newNonce: () => bigint;
  readonly #running = new Map<string, Greeting>();
  readonly #repeater: Repeater;

  /** @param newNonce never the same twice, not guessable */
  constructor(clock: Clock, newNonce: () => bigint) {
    this.#clock = clock;
    this.#newNonce = newNonce;
    this.#repeater = new Repeater(clock);
  }

  get size(): number {
    return this.#running.size;
  }

  at(endpoint: string): Greeting | undefined {
    return this.#running.get(endpoint);
  }

  begin(endpoint: string, why: Pick<Greeting, 'probe' | 'claim'>, send: (nonce: bigint) => void): void {
    const nonce = this.#newNonce();
    this.#running.set(endpoint, { nonce, startedAtMs: this.#clock.now(), ...why });
    this.#repeater.start(endpoint, () => send(nonce));
  }

  end(endpoint: string): void {
    this.#running.delete(endpoint);
    this.#repeater.stop(endpoint);
  }

  /** Ends those that nobody answered in time, and says which. */
  expire(timeoutMs: number): (readonly [string, Greeting])[] {
    const now = this.#clock.now();
    const expired = [...this.#running].filter(([, { startedAtMs }]) => now - startedAtMs >= timeoutMs);
    for (const [endpoint] of expired) this.end(endpoint);
    return expired;
  }

  close(): void {
    this.#repeater.stopAll();
    this.#running.clear();
  }
}
