import { isEndpoint } from './endpoint.js';
import { MAX_ENDPOINT_BYTES } from './limits.js';
import { wireError } from './wire-reason.js';

/**
 * One decoded msgpack map, read field by field. Nothing of it is believed: each getter checks type and range and names the full path of
 * what is wrong. Unknown keys are ignored, so that a later minor may add some.
 */
export class DecodedMap {
  readonly #fields: Readonly<Record<string, unknown>>;
  readonly #path: string;

  constructor(value: unknown, path: string) {
    if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof Uint8Array) {
      throw wireError('bad-value', `${path} must be a map, got ${describe(value)}`);
    }
    this.#fields = value as Record<string, unknown>;
    this.#path = path;
  }

  integer(name: string, min: number, max: number): number {
    const value = this.#get(name);
    // The path is for the refusal alone.
    return typeof value === 'number' && Number.isSafeInteger(value) && value >= min && value <= max
      ? value
      : asInteger(value, min, max, this.pathOf(name));
  }

  u64(name: string): bigint {
    const value = this.#get(name);
    const wide = typeof value === 'number' && Number.isSafeInteger(value) ? BigInt(value) : value;
    if (typeof wide !== 'bigint' || wide < 0n || wide > 0xffff_ffff_ffff_ffffn) {
      this.#refuse(name, 'an unsigned 64-bit integer', value);
    }
    return wide;
  }

  boolean(name: string): boolean {
    const value = this.#get(name);
    if (typeof value !== 'boolean') this.#refuse(name, 'a boolean', value);
    return value;
  }

  /** True or left out: what a later minor added. */
  flag(name: string): boolean {
    const value = this.#get(name);
    if (value !== undefined && typeof value !== 'boolean') this.#refuse(name, 'a boolean', value);
    return value === true;
  }

  string(name: string, maxBytes: number): string {
    const value = this.#get(name);
    if (typeof value !== 'string') this.#refuse(name, 'a string', value);
    if (Buffer.byteLength(value) > maxBytes) {
      throw wireError('string-too-long', `${this.pathOf(name)} has more than ${maxBytes} bytes`);
    }
    return value;
  }

  endpoint(name: string): string {
    const value = this.string(name, MAX_ENDPOINT_BYTES);
    if (!isEndpoint(value)) throw wireError('bad-endpoint', `${this.pathOf(name)} must be tcp://host:port`);
    return value;
  }

  oneOf<T extends string>(name: string, choices: readonly T[]): T {
    const value = this.#get(name);
    const choice = choices.find((candidate) => candidate === value);
    if (choice === undefined) this.#refuse(name, `one of ${choices.join(', ')}`, value);
    return choice;
  }

  /** Copied: the value does not keep the frame alive. */
  bytes(name: string, maxBytes: number): Uint8Array {
    const value = this.#get(name);
    if (!(value instanceof Uint8Array)) this.#refuse(name, 'bytes', value);
    if (value.length > maxBytes) {
      throw wireError('count-over-cap', `${this.pathOf(name)} has ${value.length} bytes; at most ${maxBytes}`);
    }
    return new Uint8Array(value);
  }

  map(name: string): DecodedMap {
    return new DecodedMap(this.#get(name), this.pathOf(name));
  }

  /** A single value read as a list's items are. */
  field<T>(name: string, read: (item: unknown, path: string) => T): T {
    return read(this.#get(name), this.pathOf(name));
  }

  list<T>(name: string, maxCount: number, read: (item: unknown, path: string) => T): T[] {
    const value = this.#get(name);
    if (!Array.isArray(value)) this.#refuse(name, 'a list', value);
    if (value.length > maxCount) {
      throw wireError('count-over-cap', `${this.pathOf(name)} has ${value.length} entries; at most ${maxCount}`);
    }
    return value.map((item, index) => read(item, `${this.pathOf(name)}[${index}]`));
  }

  pathOf(name: string): string {
    return `${this.#path}.${name}`;
  }

  #get(name: string): unknown {
    return Object.hasOwn(this.#fields, name) ? this.#fields[name] : undefined;
  }

  #refuse(name: string, wanted: string, value: unknown): never {
    throw wireError('bad-value', `${this.pathOf(name)} must be ${wanted}, got ${describe(value)}`);
  }
}

/** An integer may arrive as a 64-bit one from a peer that encodes wide. */
export function asInteger(value: unknown, min: number, max: number, path: string): number {
  const narrow = typeof value === 'bigint' ? Number(value) : value;
  if (typeof narrow !== 'number' || !Number.isSafeInteger(narrow) || narrow < min || narrow > max) {
    throw wireError('bad-value', `${path} must be an integer in [${min}, ${max}], got ${describe(value)}`);
  }
  return narrow;
}

/** Short and free of the peer's own text beyond a few characters: it ends up in a log. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 32));
  if (typeof value === 'object') return 'a map';
  return String(value);
}
