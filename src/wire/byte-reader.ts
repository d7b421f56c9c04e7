import { isEndpoint } from './endpoint.js';
import { MAX_ENDPOINT_BYTES } from './limits.js';
import { SHORT_ARRAY } from './short-array.js';
import { wireError } from './wire-reason.js';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const { latin1Slice } = Buffer.prototype as unknown as {
  latin1Slice(this: Uint8Array, begin: number, end: number): string;
};
const PRINTABLE_ASCII = /^[\x20-\x7e]*$/;

/**
 * Reads little-endian fields; every length is checked against what is left before it is used. Results never share the input's memory,
 * so that a small string does not keep a large frame alive.
 */
export class ByteReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get remaining(): number {
    return this.#bytes.length - this.#at;
  }

  u8(field: string): number {
    return this.#view.getUint8(this.#take(1, field));
  }

  u16(field: string): number {
    return this.#view.getUint16(this.#take(2, field), true);
  }

  u32(field: string): number {
    return this.#view.getUint32(this.#take(4, field), true);
  }

  i32(field: string): number {
    return this.#view.getInt32(this.#take(4, field), true);
  }

  u64(field: string): bigint {
    return this.#view.getBigUint64(this.#take(8, field), true);
  }

  /** A byte that may only be 0 or 1. */
  bool(field: string): boolean {
    const value = this.u8(field);
    if (value > 1) throw wireError('bad-value', `${field} must be 0 or 1, got ${value}`);
    return value === 1;
  }

  i32Array(count: number, field: string): Int32Array {
    // Checked before the allocation: `count` comes from the peer.
    const at = this.#take(count * 4, field);
    const values = new Int32Array(count);
    if (count <= SHORT_ARRAY) {
      for (let i = 0; i < count; i++) values[i] = this.#view.getInt32(at + i * 4, true);
      return values;
    }
    new Uint8Array(values.buffer).set(this.#bytes.subarray(at, at + count * 4));
    return values;
  }

  /** u16 byte length, then UTF-8. */
  string(maxBytes: number, field: string): string {
    const length = this.u16(field);
    if (length > maxBytes) throw wireError('string-too-long', `${field} has ${length} bytes; at most ${maxBytes}`);
    const at = this.#take(length, field);
    if (this.#isAscii(at, length)) return latin1Slice.call(this.#bytes, at, at + length);
    try {
      return decoder.decode(this.#bytes.subarray(at, at + length));
    } catch (cause) {
      throw wireError('bad-string', `${field} is not UTF-8`, cause);
    }
  }

  /** A string that may end up in a log line or a header: printable ASCII only. */
  ascii(maxBytes: number, field: string): string {
    const value = this.string(maxBytes, field);
    if (!PRINTABLE_ASCII.test(value)) throw wireError('bad-string', `${field} must be printable ASCII`);
    return value;
  }

  endpoint(field: string): string {
    const value = this.ascii(MAX_ENDPOINT_BYTES, field);
    if (!isEndpoint(value)) throw wireError('bad-endpoint', `${field} must be tcp://host:port`);
    return value;
  }

  /** What is left, not copied. */
  rest(): Uint8Array {
    const at = this.#at;
    this.#at = this.#bytes.length;
    return this.#bytes.subarray(at);
  }

  /** Of ASCII, Latin 1 and UTF-8 are the same, and Latin 1 is read several times as fast. */
  #isAscii(at: number, length: number): boolean {
    for (let i = at; i < at + length; i++) if ((this.#bytes[i] as number) >= 0x80) return false;
    return true;
  }

  #take(sizeBytes: number, field: string): number {
    if (sizeBytes > this.remaining) {
      throw wireError('truncated', `frame ends inside ${field}: ${sizeBytes} bytes needed, ${this.remaining} left`);
    }
    const at = this.#at;
    this.#at += sizeBytes;
    return at;
  }
}
