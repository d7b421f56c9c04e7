import { ArgumentError, RequestTooLargeError } from '../errors.js';
import { MAX_FRAME_BYTES } from './limits.js';
import { SHORT_ARRAY } from './short-array.js';

const encoder = new TextEncoder();

const ASCII_END = 0x80;
/** What one frame grew to is not kept for the next ones beyond this. */
const KEPT_BYTES = 64 * 1024;

/**
 * Appends little-endian fields to one growing buffer. Values that do not fit their field are the caller's mistake: ArgumentError.
 * Ordering: `#view` is read after `#advance`, which may replace it.
 */
export class ByteWriter {
  #bytes: Uint8Array<ArrayBuffer>;
  #view: DataView;
  #length = 0;

  constructor(capacityBytes: number) {
    this.#bytes = new Uint8Array(capacityBytes);
    this.#view = new DataView(this.#bytes.buffer);
  }

  u8(value: number, field: string): void {
    checkInteger(value, 0, 0xff, field);
    const at = this.#advance(1);
    this.#view.setUint8(at, value);
  }

  u16(value: number, field: string): void {
    checkInteger(value, 0, 0xffff, field);
    const at = this.#advance(2);
    this.#view.setUint16(at, value, true);
  }

  u32(value: number, field: string): void {
    checkInteger(value, 0, 0xffff_ffff, field);
    const at = this.#advance(4);
    this.#view.setUint32(at, value, true);
  }

  i32(value: number, field: string): void {
    checkInteger(value, -0x8000_0000, 0x7fff_ffff, field);
    const at = this.#advance(4);
    this.#view.setInt32(at, value, true);
  }

  u64(value: bigint, field: string): void {
    if (typeof value !== 'bigint' || value < 0n || value > 0xffff_ffff_ffff_ffffn) {
      throw new ArgumentError(`${field} must be a bigint in [0, 2^64), got ${String(value)}`);
    }
    const at = this.#advance(8);
    this.#view.setBigUint64(at, value, true);
  }

  /** In single precision. Infinities are numbers, NaN is none. */
  f32(value: number, field: string): void {
    if (typeof value !== 'number' || Number.isNaN(value)) {
      throw new ArgumentError(`${field} must be a number, got ${String(value)}`);
    }
    const at = this.#advance(4);
    this.#view.setFloat32(at, value, true);
  }

  bool(value: boolean): void {
    const at = this.#advance(1);
    this.#view.setUint8(at, value ? 1 : 0);
  }

  i32Array(values: Int32Array): void {
    if (values.length <= SHORT_ARRAY) {
      const at = this.#advance(values.length * 4);
      for (let i = 0; i < values.length; i++) this.#view.setInt32(at + i * 4, values[i] as number, true);
      return;
    }
    // The package runs on little-endian machines only (x64, arm64), so the array's bytes are already in wire order.
    this.raw(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
  }

  raw(bytes: Uint8Array): void {
    const at = this.#advance(bytes.length);
    this.#bytes.set(bytes, at);
  }

  /** u16 byte length, then UTF-8. */
  string(value: string, maxBytes: number, field: string): void {
    if (value.length <= maxBytes && this.#ascii(value, field)) return;
    const bytes = encoder.encode(value);
    if (bytes.length > maxBytes) {
      throw new ArgumentError(`${field} must be at most ${maxBytes} bytes of UTF-8, got ${bytes.length}`);
    }
    this.u16(bytes.length, field);
    this.raw(bytes);
  }

  /** As `string`, cut at a character when too long: a failure must be reportable however long its text is. */
  text(value: string, maxBytes: number, field: string): void {
    if (value.length <= maxBytes && this.#ascii(value, field)) return;
    const room = new Uint8Array(maxBytes);
    const { written } = encoder.encodeInto(value, room);
    this.u16(written, field);
    this.raw(room.subarray(0, written));
  }

  finish(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  /** A copy of its own size; the writer can be used for the next frame. */
  take(): Uint8Array {
    const bytes = this.#bytes.slice(0, this.#length);
    this.restart();
    return bytes;
  }

  /** Forgets what was written, of a frame that could not be finished, too. */
  restart(): void {
    this.#length = 0;
    if (this.#bytes.length <= KEPT_BYTES) return;
    this.#bytes = new Uint8Array(KEPT_BYTES);
    this.#view = new DataView(this.#bytes.buffer);
  }

  /** Most strings are addresses and codes. False: it is not all ASCII, and nothing was written. */
  #ascii(value: string, field: string): boolean {
    const { length } = value;
    for (let i = 0; i < length; i++) if (value.charCodeAt(i) >= ASCII_END) return false;
    this.u16(length, field);
    const at = this.#advance(length);
    for (let i = 0; i < length; i++) this.#bytes[at + i] = value.charCodeAt(i);
    return true;
  }

  #advance(sizeBytes: number): number {
    const at = this.#length;
    const needed = at + sizeBytes;
    if (needed > MAX_FRAME_BYTES) {
      throw new RequestTooLargeError(
        `control frame would exceed ${MAX_FRAME_BYTES} bytes; split the request or use larger blocks`,
      );
    }
    if (needed > this.#bytes.length) {
      const grown = new Uint8Array(Math.max(needed, this.#bytes.length * 2));
      grown.set(this.#bytes.subarray(0, at));
      this.#bytes = grown;
      this.#view = new DataView(grown.buffer);
    }
    this.#length = needed;
    return at;
  }
}

function checkInteger(value: number, min: number, max: number, field: string): void {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new ArgumentError(`${field} must be an integer in [${min}, ${max}], got ${String(value)}`);
  }
}
