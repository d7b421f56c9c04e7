import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ArgumentError } from '../../../src/errors.js';
import { PaceCurve, type PacedModel } from '../../../src/executor/engines/pace-curve.js';

const MODEL: PacedModel = {
  activeParameters: 1000,
  attentionHeads: 3,
  headDim: 5,
  layers: [
    { windowSize: null, count: 2 },
    { windowSize: 4, count: 7 },
  ],
  kvBytesPerTokenAndLayer: 16,
};

/** Token by token, as the formula in the class says. */
function naive(begin: number, end: number): number {
  let flops = 0;
  for (let p = begin; p < end; p++) flops += 2 * 1000 + 4 * 15 * (2 * (p + 1) + 7 * Math.min(p + 1, 4));
  return flops;
}

describe('PaceCurve', () => {
  const curve = new PaceCurve(MODEL, { effectiveFlops: 1e6, effectiveBytesPerSecond: 1e6 });

  it('sums every token, windows capped', () => {
    fc.assert(
      fc.property(fc.nat({ max: 40 }), fc.nat({ max: 40 }), (begin, count) => {
        expect(curve.chunkFlops(begin, begin + count)).toBe(naive(begin, begin + count));
      }),
    );
  });

  it('does not depend on how a prompt is cut', () => {
    expect(curve.chunkMs(0, 7) + curve.chunkMs(7, 29)).toBeCloseTo(curve.chunkMs(0, 29), 9);
  });

  it('turns FLOP into milliseconds', () => {
    expect(curve.chunkMs(0, 1)).toBe((naive(0, 1) / 1e6) * 1e3);
  });

  it('models 2048 tokens of an 8 B model on the stated device', () => {
    const llama = new PaceCurve({
      activeParameters: 8.03e9,
      attentionHeads: 32,
      headDim: 128,
      layers: [{ windowSize: null, count: 32 }],
      kvBytesPerTokenAndLayer: 4096,
    });
    // 2 * 8.03e9 * 2048 + 4 * 32 * 4096 * 2048 * 2049 / 2 = 34.0 TFLOP at 156 TFLOP/s
    expect(llama.chunkMs(0, 2048)).toBeCloseTo(217.9, 1);
    // 16.06 GB of weights and 33.6 MB of cache at 1.02 TB/s
    expect(llama.decodeMs([255])).toBeCloseTo(15.78, 2);
  });

  it('a decode step reads the weights once for all, and the cache of each', () => {
    const bytes = (position: number) => 16 * (2 * (position + 1) + 7 * Math.min(position + 1, 4));
    const slow = new PaceCurve(MODEL, { effectiveFlops: 1e15, effectiveBytesPerSecond: 1e6 });
    expect(slow.decodeMs([9, 1])).toBeCloseTo(((2000 + bytes(9) + bytes(1)) / 1e6) * 1e3, 9);
    expect(slow.decodeMs([])).toBe(0);
    const compute = new PaceCurve(MODEL, { effectiveFlops: 1, effectiveBytesPerSecond: 1e15 });
    expect(compute.decodeMs([9])).toBe(naive(9, 10) * 1e3);
  });

  it.each([
    [{ ...MODEL, activeParameters: 0 }, {}],
    [{ ...MODEL, headDim: Number.NaN }, {}],
    [MODEL, { effectiveFlops: -1 }],
    [MODEL, { effectiveBytesPerSecond: Number.POSITIVE_INFINITY }],
  ])('refuses a figure that is not positive', (model, device) => {
    expect(() => new PaceCurve(model, device)).toThrow(ArgumentError);
  });
});
