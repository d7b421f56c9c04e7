import { ConfigError } from '../../../errors.js';

/** Elements of pages as numbers. */
export interface ElementCodec {
  readonly elementBytes: number;
  encode(values: Float32Array): Uint8Array;
  /** @returns `bytes.length / elementBytes` values */
  decode(bytes: Uint8Array): Float32Array;
}

const FLOAT32: ElementCodec = {
  elementBytes: 4,
  encode: (values) => new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
  decode: (bytes) => {
    const aligned = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice();
    return new Float32Array(aligned.buffer, aligned.byteOffset, aligned.length / 4);
  },
};

/** The upper half of a float32, rounded to the nearest, ties to even. */
const BFLOAT16: ElementCodec = {
  elementBytes: 2,
  encode: (values) => {
    const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
    const halves = Uint16Array.from(bits, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
    return new Uint8Array(halves.buffer);
  },
  decode: (bytes) => {
    const words = new Uint32Array(bytes.length / 2);
    for (let i = 0; i < words.length; i++) {
      words[i] = (((bytes[2 * i + 1] as number) << 24) | ((bytes[2 * i] as number) << 16)) >>> 0;
    }
    return new Float32Array(words.buffer);
  },
};

/** @throws ConfigError for a dtype that the tiny engine cannot compute in */
export function elementCodec(dtype: string): ElementCodec {
  if (dtype === 'float32') return FLOAT32;
  if (dtype === 'bfloat16') return BFLOAT16;
  throw new ConfigError(`tiny engine: dtype is ${JSON.stringify(dtype)}; use 'float32' or 'bfloat16'`);
}
