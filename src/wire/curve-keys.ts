import { createPrivateKey, createPublicKey, diffieHellman, generateKeyPairSync } from 'node:crypto';
import { decodeKey, encodeKey } from '../config/z85.js';
import { ArgumentError } from '../errors.js';

/** A CURVE key pair, each key as 40 characters of Z85. The secret never enters a message, a log or a configuration. */
export interface CurveKeyPair {
  readonly publicKey: string;
  readonly secretKey: string;
}

/** PKCS#8 around the 32 bytes of an X25519 secret. */
const PKCS8_PREFIX = Buffer.from('302e020100300506032b656e04220420', 'hex');
/** The same around the 32 bytes of a public key: SubjectPublicKeyInfo. */
const SPKI_PREFIX = Buffer.from('302a300506032b656e032100', 'hex');

/** A new random pair. */
export function generateCurveKeyPair(): CurveKeyPair {
  const { privateKey } = generateKeyPairSync('x25519');
  const { d } = privateKey.export({ format: 'jwk' });
  const secretKey = encodeKey(Buffer.from(d as string, 'base64url'));
  return { secretKey, publicKey: publicKeyOf(secretKey) };
}

/**
 * The public key that belongs to a secret.
 * @throws ArgumentError, without repeating the text, when it is no key
 */
export function publicKeyOf(secretKey: string): string {
  const secret = decodeKey(secretKey);
  if (secret === null) throw new ArgumentError('a secret key has 40 characters of Z85');
  const key = createPrivateKey({ key: Buffer.concat([PKCS8_PREFIX, secret]), format: 'der', type: 'pkcs8' });
  const { x } = createPublicKey(key).export({ format: 'jwk' });
  return encodeKey(Buffer.from(x as string, 'base64url'));
}

/**
 * Whether a public key is of no use: one of the few points (all zeros among them, which somebody may have put as a placeholder) that agree with
 * every secret on the same shared key, so that anybody could prove to have it.
 * @param publicKey 40 characters of Z85
 */
export function isWeakPublicKey(publicKey: string): boolean {
  const bytes = decodeKey(publicKey);
  if (bytes === null) return true;
  const key = createPublicKey({ key: Buffer.concat([SPKI_PREFIX, bytes]), format: 'der', type: 'spki' });
  try {
    diffieHellman({ privateKey: generateKeyPairSync('x25519').privateKey, publicKey: key });
    return false;
  } catch {
    // OpenSSL refuses a shared key of zeros, which is what such a point leads to; there is no other way for this to fail.
    return true;
  }
}
