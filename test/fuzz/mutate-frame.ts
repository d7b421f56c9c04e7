import { decode, encode } from '@msgpack/msgpack';
import { HEADER_BYTES } from '../../src/wire/frame-header.js';
import { MessageType } from '../../src/wire/messages.js';
import type { Random } from '../sim/core/random.js';
import type { CorpusFrame } from './frame-corpus.js';
import { mutateValue } from './mutate-value.js';

const EDGE_LENGTHS = [
  0, 1, 2, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff,
];
const MAX_MUTANT_BYTES = 8192;

type Mutation = (random: Random, frame: Uint8Array, corpus: readonly CorpusFrame[]) => Uint8Array;

/** How a valid frame is spoiled. Each is chosen as often as its neighbours, and up to three follow each other. */
export const MUTATIONS: Readonly<Record<string, Mutation>> = {
  flipBits: (random, frame) => {
    const bytes = frame.slice();
    for (let flips = random.between(1, 8); flips > 0 && bytes.length > 0; flips--) {
      const at = random.below(bytes.length);
      bytes[at] = (bytes[at] as number) ^ (1 << random.below(8));
    }
    return bytes;
  },
  setBytes: (random, frame) => {
    const bytes = frame.slice();
    for (let count = random.between(1, 4); count > 0 && bytes.length > 0; count--)
      bytes[random.below(bytes.length)] = random.pick([0, 1, 0x7f, 0x80, 0xc1, 0xdd, 0xdf, 0xff]);
    return bytes;
  },
  truncate: (random, frame) => frame.slice(0, random.below(frame.length + 1)),
  extend: (random, frame) => joined(frame, randomBytes(random, random.between(1, 64))),
  cutOut: (random, frame) => {
    const from = random.below(frame.length + 1);
    return joined(frame.subarray(0, from), frame.subarray(Math.min(frame.length, from + random.between(1, 16))));
  },
  insert: (random, frame) => {
    const at = random.below(frame.length + 1);
    return joined(frame.subarray(0, at), randomBytes(random, random.between(1, 16)), frame.subarray(at));
  },
  splice: (random, frame, corpus) => {
    const other = random.pick(corpus).bytes;
    return joined(frame.subarray(0, random.below(frame.length + 1)), other.subarray(random.below(other.length + 1)));
  },
  otherHeader: (random, frame, corpus) =>
    joined(random.pick(corpus).bytes.subarray(0, HEADER_BYTES), frame.subarray(HEADER_BYTES)),
  /** Lengths and counts are little endian in fixed bodies, big endian in msgpack. */
  editLength: (random, frame) => {
    const bytes = frame.slice();
    if (bytes.length < HEADER_BYTES + 4) return bytes;
    const at = random.between(HEADER_BYTES, bytes.length - 4);
    const view = new DataView(bytes.buffer);
    const value = random.chance(0.7) ? random.pick(EDGE_LENGTHS) : random.below(bytes.length * 2);
    if (random.chance(0.5)) view.setUint32(at, value, random.chance(0.5));
    else view.setUint16(at, value & 0xffff, random.chance(0.5));
    return bytes;
  },
  editPacked: (random, frame) => {
    if (frame.length < HEADER_BYTES || (frame[6] !== MessageType.HELLO && frame[6] !== MessageType.HELLO_ACK)) {
      return frame.slice();
    }
    try {
      const body = decode(frame.subarray(HEADER_BYTES), { useBigInt64: true });
      const edited = encode(mutateValue(random, body, random.between(1, 4)), { useBigInt64: true, maxDepth: 64 });
      return joined(frame.subarray(0, HEADER_BYTES), edited);
    } catch {
      // Spoiled before, or edited into what msgpack cannot say.
      return frame.slice();
    }
  },
  randomBody: (random, frame) => joined(frame.subarray(0, HEADER_BYTES), randomBytes(random, random.below(200))),
  random: (random) => randomBytes(random, random.below(300)),
};

const NAMES = Object.keys(MUTATIONS);

/** One mutated frame, at most 8 KiB. */
export function mutateFrame(random: Random, corpus: readonly CorpusFrame[], from = random.pick(corpus)): Uint8Array {
  let bytes = from.bytes;
  const isPacked = from.type === 'HELLO' || from.type === 'HELLO_ACK';
  for (let count = random.pick([1, 1, 1, 2, 3]); count > 0; count--) {
    const name = isPacked && random.chance(0.4) ? 'editPacked' : random.pick(NAMES);
    bytes = (MUTATIONS[name] as Mutation)(random, bytes, corpus);
  }
  return bytes.length > MAX_MUTANT_BYTES ? bytes.slice(0, MAX_MUTANT_BYTES) : bytes;
}

function randomBytes(random: Random, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  for (let i = 0; i < length; i++) bytes[i] = random.below(256);
  return bytes;
}

function joined(...parts: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}
