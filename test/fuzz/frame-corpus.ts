import fc from 'fast-check';
import { encodeFrame } from '../../src/wire/frame-codec.js';
import type { Message } from '../../src/wire/messages.js';
import { MESSAGES } from '../property/wire-arbitraries.js';

const FRAMES_PER_TYPE = 24;

/** A valid frame. */
export interface CorpusFrame {
  readonly type: Message['type'];
  readonly bytes: Uint8Array;
}

/** Valid frames of every type, the same for the same seed. What mutations start from. */
export function frameCorpus(seed: number): readonly CorpusFrame[] {
  return Object.values(MESSAGES).flatMap((arbitrary) =>
    fc
      .sample(arbitrary as fc.Arbitrary<Message>, { seed, numRuns: FRAMES_PER_TYPE })
      .map((message) => ({ type: message.type, bytes: encodeFrame(message, { incarnation: 7n }).slice() })),
  );
}
