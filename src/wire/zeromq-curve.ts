import { capability } from 'zeromq';
import { keyOfPeer } from '../config/peer-pattern.js';
import { decodeKey } from '../config/z85.js';
import { CapabilityError, ConfigError } from '../errors.js';

import { type CurveKeyPair, isWeakPublicKey, publicKeyOf } from './curve-keys.js';
import type { EndpointParts } from './endpoint.js';

/** Keys of one messenger. */
export interface CurveOptions extends CurveKeyPair {
  /** Server key by peer: `tcp://host:port`, `host:port`, a host, or `*`. Default: our own public key, one pair for the whole cluster. */
  readonly peers?: Readonly<Record<string, string>>;
  /** Public keys that may connect, besides our own and those of `peers`. */
  readonly allowedClients?: readonly string[];
}

/** Role: who this messenger is to its peers, and whom it accepts. */
export class CurveIdentity {
  readonly publicKey: string;
  readonly #secretKey: string;
  readonly #peers: Readonly<Record<string, string>>;
  readonly #accepted: ReadonlySet<string>;

  /**
   * @throws ConfigError for a key that is none, or a public key that is not the secret's
   * @throws CapabilityError when libzmq was built without CURVE
   */
  constructor({ publicKey, secretKey, peers = {}, allowedClients = [] }: CurveOptions) {
    if (capability.curve !== true) {
      throw new CapabilityError(
        'security.curve: the zeromq package was built without CURVE; install its prebuilt binary, or build it with libsodium',
      );
    }
    const keys = [publicKey, secretKey, ...Object.values(peers), ...allowedClients];
    // The message names no key: one of them is secret.
    if (keys.some((key) => typeof key !== 'string' || decodeKey(key) === null)) {
      throw new ConfigError(
        'security.curve: every key must have 40 characters of Z85, as `kv-transceiver keygen` prints them',
      );
    }
    if (publicKeyOf(secretKey) !== publicKey) {
      throw new ConfigError('security.curve: the public key does not belong to the secret key');
    }
    if ([...Object.values(peers), ...allowedClients].some(isWeakPublicKey)) {
      throw new ConfigError(
        'security.curve: a public key in peers or allowedClients is one that anybody could prove to have, such as all zeros; put a real one there',
      );
    }
    this.publicKey = publicKey;
    this.#secretKey = secretKey;
    this.#peers = peers;
    this.#accepted = new Set([publicKey, ...Object.values(peers), ...allowedClients]);
  }

  accepts(publicKey: string): boolean {
    return this.#accepted.has(publicKey);
  }

  /** The key that a peer must prove to have. */
  serverKeyOf(peer: EndpointParts): string {
    return keyOfPeer(this.#peers, peer) ?? this.publicKey;
  }

  /** Options of a socket that peers connect to. */
  serverOptions(zapDomain: string): {
    readonly curveServer: true;
    readonly curveSecretKey: string;
    readonly zapDomain: string;
    readonly zapEnforceDomain: true;
  } {
    // Enforced: without it libzmq would accept everybody while nobody answers for the domain.
    return { curveServer: true, curveSecretKey: this.#secretKey, zapDomain, zapEnforceDomain: true };
  }

  /** Options of a socket that connects to `peer`. */
  clientOptions(peer: EndpointParts): {
    readonly curvePublicKey: string;
    readonly curveSecretKey: string;
    readonly curveServerKey: string;
  } {
    return {
      curvePublicKey: this.publicKey,
      curveSecretKey: this.#secretKey,
      curveServerKey: this.serverKeyOf(peer),
    };
  }
}
