import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { WireError } from '../../src/errors.js';
import { decodeFrame, encodeFrame } from '../../src/wire/frame-codec.js';
import { WIRE_MAJOR, WIRE_MINOR } from '../../src/wire/frame-header.js';
import type { Message } from '../../src/wire/messages.js';
import { WIRE_REASONS } from '../../src/wire/wire-reason.js';
import { anyMessage, incarnation, MESSAGES } from './wire-arbitraries.js';

const KNOWN_REASONS: ReadonlySet<string> = new Set(WIRE_REASONS);

/** Decodes; only a WireError with a known reason may come out instead of a frame. */
function decodeOrReason(bytes: Uint8Array): string {
  try {
    decodeFrame(bytes);
    return 'decoded';
  } catch (error) {
    if (!(error instanceof WireError) || !KNOWN_REASONS.has(error.reason)) throw error;
    return error.reason;
  }
}

describe('round trip', () => {
  for (const [name, arbitrary] of Object.entries(MESSAGES)) {
    it(name, () => {
      fc.assert(
        fc.property(arbitrary, incarnation, (message, sender) => {
          const frame = decodeFrame(encodeFrame(message, { incarnation: sender }));
          expect(frame).toEqual({ major: WIRE_MAJOR, minor: WIRE_MINOR, incarnation: sender, message });
        }),
        { numRuns: 150 },
      );
    });
  }

  it('encodes what it decoded to the same bytes', () => {
    fc.assert(
      fc.property(anyMessage, incarnation, (message, sender) => {
        const bytes = encodeFrame(message, { incarnation: sender });
        const decoded = decodeFrame(bytes).message;
        if (decoded.type === 'UNKNOWN') throw new Error('a known message came back as UNKNOWN');
        expect(encodeFrame(decoded, { incarnation: sender })).toEqual(bytes);
      }),
      { numRuns: 300 },
    );
  });
});

describe('hostile bytes', () => {
  for (const [name, arbitrary] of Object.entries(MESSAGES)) {
    it(`${name} cut at any byte is refused`, () => {
      const isPacked = name === 'HELLO' || name === 'HELLO_ACK';
      fc.assert(
        fc.property(arbitrary as fc.Arbitrary<Message>, (message) => {
          const bytes = encodeFrame(message, { incarnation: 7n });
          for (let length = 0; length < bytes.length; length++) {
            const reason = decodeOrReason(bytes.subarray(0, length));
            // In msgpack the cut may look like another fault, never like a frame.
            if (isPacked) expect(reason, `cut at ${length} of ${bytes.length}`).not.toBe('decoded');
            else expect(reason, `cut at ${length} of ${bytes.length}`).toBe('truncated');
          }
        }),
        { numRuns: 12 },
      );
    });

    it(`${name} with any one bit flipped is a frame or a WireError`, () => {
      fc.assert(
        fc.property(arbitrary as fc.Arbitrary<Message>, (message) => {
          const bytes = encodeFrame(message, { incarnation: 7n }).slice();
          for (let bit = 0; bit < bytes.length * 8; bit++) {
            const at = bit >> 3;
            bytes[at] = (bytes[at] as number) ^ (1 << (bit & 7));
            decodeOrReason(bytes);
            bytes[at] = (bytes[at] as number) ^ (1 << (bit & 7));
          }
        }),
        { numRuns: 4 },
      );
    });
  }

  it('bytes after the body are refused', () => {
    fc.assert(
      fc.property(anyMessage, fc.uint8Array({ minLength: 1, maxLength: 9 }), (message, extra) => {
        const bytes = encodeFrame(message, { incarnation: 7n });
        expect(decodeOrReason(Uint8Array.from([...bytes, ...extra]))).toBe('trailing-bytes');
      }),
    );
  });

  it('flipped bits give a frame or a WireError, nothing else', () => {
    fc.assert(
      fc.property(anyMessage, fc.array(fc.nat(), { minLength: 1, maxLength: 8 }), (message, flips) => {
        const bytes = encodeFrame(message, { incarnation: 7n }).slice();
        for (const flip of flips) {
          const bit = flip % (bytes.length * 8);
          bytes[bit >> 3] = (bytes[bit >> 3] as number) ^ (1 << (bit & 7));
        }
        decodeOrReason(bytes);
      }),
      { numRuns: 3000 },
    );
  });

  it('random bodies behind a good header give a frame or a WireError, nothing else', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 255 }), fc.uint8Array({ maxLength: 200 }), (type, body) => {
        const header = encodeFrame({ type: 'ACCEPTED', rid: 1n, ticket: 1n }, { incarnation: 7n }).slice(0, 24);
        header[6] = type;
        decodeOrReason(Uint8Array.from([...header, ...body]));
      }),
      { numRuns: 3000 },
    );
  });
});
