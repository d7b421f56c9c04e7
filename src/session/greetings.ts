import type { Clock } from '../clock.js';
import type { FrameOrigin, SpokenMajor } from '../wire/index.js';
import type { Hello } from '../wire/messages.js';
import { Repeater } from './repeater.js';

/** Less than the first repeat of a HELLO, so that each asks once more. */
const PROOF_INTERVAL_MS = 200;
/** How long an answer to a HELLO that was ended may still come, and how many of those are known. */
const ANSWER_LIMIT_MS = 10_000;
const MAX_ENDED = 1024;

/** A HELLO, the version of its frame, and the connection that it came by. */
export interface Claim {
  readonly hello: Hello;
  readonly heard: SpokenMajor;
  readonly origin: FrameOrigin;
}

export interface Greeting {
  readonly nonce: bigint;
  readonly startedAtMs: number;
  /** Nobody waits for this peer: it only shows which process answers there, and by which connection it speaks. */
  readonly probe: boolean;
  /** HELLO that claims to come from there, judged when the endpoint itself has answered. */
  claim: Claim | null;
  /**
   * Of the question who is there, when somebody claims to be while a HELLO that wants a peer is under way: two ranks that greet each other at once
   * would else both wait for the other's proof.
   */
  proofNonce: bigint | null;
  /** When that was last asked. */
  proofAskedAtMs: number;
  /** Answers of a version that this rank does not speak. */
  unreadable: number;
}

/** Role: our HELLOs that are under way, one per endpoint, each with a nonce of its own, repeated until ended. */
export class Greetings {
  readonly #clock: Clock;
  readonly #newNonce: () => bigint;
  readonly #running = new Map<string, Greeting>();
  /** Nonces of ended ones, oldest first. */
  readonly #ended = new Map<bigint, { readonly endpoint: string; readonly atMs: number }>();
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

  /** The endpoint that was sent this nonce. */
  endpointOf(nonce: bigint): string | null {
    for (const [endpoint, greeting] of this.#running) if (greeting.nonce === nonce) return endpoint;
    return null;
  }

  /** One that runs there is replaced. */
  begin(
    endpoint: string,
    { probe, claim }: Pick<Greeting, 'probe' | 'claim'>,
    send: (nonce: bigint, attempt: number) => void,
  ): void {
    const nonce = this.#newNonce();
    let attempts = 0;
    const replaced = this.#running.get(endpoint);
    if (replaced !== undefined) this.#remember(endpoint, replaced);
    this.#running.set(endpoint, {
      nonce,
      startedAtMs: this.#clock.now(),
      probe,
      claim,
      proofNonce: null,
      proofAskedAtMs: Number.NEGATIVE_INFINITY,
      unreadable: 0,
    });
    this.#repeater.start(endpoint, () => send(nonce, attempts++));
  }

  /** @returns the nonce to ask with; null when it was asked a moment ago */
  proofNonce(greeting: Greeting): bigint | null {
    const now = this.#clock.now();
    if (now - greeting.proofAskedAtMs < PROOF_INTERVAL_MS) return null;
    greeting.proofAskedAtMs = now;
    greeting.proofNonce ??= this.#newNonce();
    return greeting.proofNonce;
  }

  end(endpoint: string): void {
    const greeting = this.#running.get(endpoint);
    if (greeting !== undefined) this.#remember(endpoint, greeting);
    this.#running.delete(endpoint);
    this.#repeater.stop(endpoint);
  }

  /** Whether this rank asked there with this nonce and needs no answer any more: a HELLO that is repeated, or asked beside another, has several. */
  wasEnded(endpoint: string, nonce: bigint): boolean {
    const ended = this.#ended.get(nonce);
    return ended?.endpoint === endpoint && this.#clock.now() - ended.atMs < ANSWER_LIMIT_MS;
  }

  /** Endpoints that are wanted as peers, and have not answered for this time. */
  wantedFor(ms: number): string[] {
    if (this.#running.size === 0) return [];
    const now = this.#clock.now();
    const wanted: string[] = [];
    for (const [endpoint, { probe, startedAtMs }] of this.#running)
      if (!probe && now - startedAtMs >= ms) wanted.push(endpoint);
    return wanted;
  }

  /** Ends those that nobody answered in time, and says which. */
  expire(timeoutMs: number): (readonly [string, Greeting])[] {
    if (this.#running.size === 0) return [];
    const now = this.#clock.now();
    const expired: [string, Greeting][] = [];
    for (const [endpoint, greeting] of this.#running) {
      const { startedAtMs } = greeting;
      if (now - startedAtMs >= timeoutMs) expired.push([endpoint, greeting]);
    }
    for (const [endpoint] of expired) this.end(endpoint);
    return expired;
  }

  close(): void {
    this.#repeater.stopAll();
    this.#running.clear();
    this.#ended.clear();
  }

  #remember(endpoint: string, { nonce, proofNonce }: Greeting): void {
    const atMs = this.#clock.now();
    for (const asked of proofNonce === null ? [nonce] : [nonce, proofNonce]) this.#ended.set(asked, { endpoint, atMs });
    for (const [asked, ended] of this.#ended) {
      if (this.#ended.size <= MAX_ENDED && atMs - ended.atMs < ANSWER_LIMIT_MS) break;
      this.#ended.delete(asked);
    }
  }
}
