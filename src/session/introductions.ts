import type { Clock } from '../clock.js';
import { isLoopback } from '../config/host-address.js';
import { type FrameOrigin, parseEndpoint } from '../wire/index.js';
import { BoundedMap } from './bounded-map.js';

/** At once; each costs a connection that this rank makes to an address that a stranger named. */
const MAX_INTRODUCTIONS = 256;
/** One that was not answered in this time makes room for another stranger's; a rank that is there answers in a few milliseconds. */
const MAY_BE_DISPLACED_AFTER_MS = 500;

/** A connection whose last introduction nobody answered gets no other one for so long: who connects anew, as ranks do, is not held to it. */
const DISTRUSTED_FOR_MS = 60_000;
const MAX_DISTRUSTED = 4096;

/** Why a stranger's endpoint is not asked. `address` and `own_endpoint` are for good, the others for the moment. */
export type IntroductionRefusal = 'address' | 'own_endpoint' | 'connection_full' | 'distrusted' | 'full';

interface Introduction {
  readonly connection: string;
  readonly startedAtMs: number;
}

/**
 * Role: strangers' endpoints that are being asked whether the stranger is there: how many, on whose account, and which addresses at all.
 * Why: any process may say that it is at any address, and this rank then connects to it. One process has one endpoint, so that one connection
 *   has one introduction at a time; all of them together are bounded, and what nobody answers goes.
 */
export class Introductions {
  readonly #clock: Clock;
  readonly #own: string;
  readonly #maxConnections: () => number;
  /** By endpoint, oldest first. */
  readonly #open = new Map<string, Introduction>();
  readonly #connections = new Set<string>();
  /** When the last endpoint that a connection named did not answer. */
  readonly #distrustedAtMs = new BoundedMap<string, number>(MAX_DISTRUSTED);

  /** @param maxConnections endpoints that can be sent to at once: strangers get an eighth of them */
  constructor(clock: Clock, options: { readonly ownEndpoint: string; readonly maxConnections: () => number }) {
    this.#clock = clock;
    this.#own = options.ownEndpoint;
    this.#maxConnections = options.maxConnections;
  }

  get size(): number {
    return this.#open.size;
  }

  /** @returns why not; or, when it is, which other one it displaces */
  admit(endpoint: string, origin: FrameOrigin): IntroductionRefusal | { readonly displaced: string | null } {
    if (endpoint === this.#own) return 'own_endpoint';
    if (!this.#isReachableKind(endpoint)) return 'address';
    const connection = origin.kind === 'accepted' ? origin.connection : '';
    if (this.#connections.has(connection)) return 'connection_full';
    const sinceMs = this.#clock.now() - (this.#distrustedAtMs.get(connection) ?? Number.NEGATIVE_INFINITY);
    if (sinceMs < DISTRUSTED_FOR_MS) return 'distrusted';
    let displaced: string | null = null;
    const capacity = Math.max(1, Math.min(MAX_INTRODUCTIONS, Math.floor(this.#maxConnections() / 8)));
    if (this.#open.size >= capacity) {
      displaced = this.#oldest();
      if (displaced === null) return 'full';
      this.unanswered(displaced);
    }
    this.#open.set(endpoint, { connection, startedAtMs: this.#clock.now() });
    this.#connections.add(connection);
    return { displaced };
  }

  /** @returns false when there was none */
  unanswered(endpoint: string): boolean {
    const introduction = this.#open.get(endpoint);
    if (introduction !== undefined) this.#distrustedAtMs.set(introduction.connection, this.#clock.now());
    return this.end(endpoint);
  }

  /** @returns false when there was none */
  end(endpoint: string): boolean {
    const introduction = this.#open.get(endpoint);
    if (introduction === undefined) return false;
    this.#connections.delete(introduction.connection);
    return this.#open.delete(endpoint);
  }

  /**
   * A rank on loopback has peers there alone, and one that other machines reach has none: a stranger must not make the first connect to the
   * network, nor the second to what listens for this machine only.
   */
  #isReachableKind(endpoint: string): boolean {
    const [own, other] = [parseEndpoint(this.#own), parseEndpoint(endpoint)];
    return own !== null && other !== null && isLoopback(own.host) === isLoopback(other.host);
  }

  #oldest(): string | null {
    for (const [endpoint, { startedAtMs }] of this.#open)
      return this.#clock.now() - startedAtMs >= MAY_BE_DISPLACED_AFTER_MS ? endpoint : null;
    return null;
  }
}
