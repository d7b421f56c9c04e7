import { ArgumentError } from '../../errors.js';

/** The shape of a model, as far as the time of its forward depends on it. */
export interface PacedModel {
  /** Parameters one token passes through (mixtures of experts: the active ones). */
  readonly activeParameters: number;
  readonly attentionHeads: number;
  /** Width of one head in the attention product. */
  readonly headDim: number;
  /** Layers of one attention span: `windowSize` in tokens, null = the whole prompt. */
  readonly layers: readonly { readonly windowSize: number | null; readonly count: number }[];
  /** KV cache bytes of one token in one layer. */
  readonly kvBytesPerTokenAndLayer: number;
  /** Bytes of one parameter. Default 2 (bfloat16). */
  readonly parameterBytes?: number;
}

/** The device whose speed is modelled. */
export interface PaceDevice {
  /**
   * FLOP/s that a prefill reaches. Default 156e12: half of the 312 TFLOP/s (dense bfloat16) of NVIDIA's A100 data sheet; half is what
   * well-tuned prefill reaches on it.
   */
  readonly effectiveFlops?: number;
  /**
   * Bytes/s of memory that a decode step reaches. Default 1.02e12: half of the 2039 GB/s of the A100 80GB SXM data sheet.
   */
  readonly effectiveBytesPerSecond?: number;
}

const DEFAULT_EFFECTIVE_FLOPS = 156e12;
const DEFAULT_EFFECTIVE_BYTES_PER_SECOND = 1.02e12;

/**
 * Modelled time of a forward. A token at position `p` costs `2 * activeParameters` FLOP (one multiply and one add per weight) and in each
 * layer `4 * attended(p) * heads * headDim` (scores and weighted sum), `attended(p) = min(p + 1, window)`. A decode step also reads all
 * active weights and the attended KV cache once; it takes whichever is longer.
 */
export class PaceCurve {
  readonly #model: PacedModel;
  readonly #flops: number;
  readonly #bytesPerSecond: number;

  /** @throws ArgumentError for a figure that is not positive */
  constructor(model: PacedModel, device: PaceDevice = {}) {
    this.#model = model;
    this.#flops = device.effectiveFlops ?? DEFAULT_EFFECTIVE_FLOPS;
    this.#bytesPerSecond = device.effectiveBytesPerSecond ?? DEFAULT_EFFECTIVE_BYTES_PER_SECOND;
    const figures = { ...model, effectiveFlops: this.#flops, effectiveBytesPerSecond: this.#bytesPerSecond };
    for (const [name, value] of Object.entries(figures)) {
      if (typeof value === 'number' && !(value > 0 && Number.isFinite(value))) {
        throw new ArgumentError(`paced model: ${name} is ${value}; it must be a positive number`);
      }
    }
  }

  /** FLOP of prompt tokens `[begin, end)`. O(layer kinds). */
  chunkFlops(begin: number, end: number): number {
    const { activeParameters, attentionHeads, headDim, layers } = this.#model;
    let attended = 0;
    for (const { windowSize, count } of layers) attended += count * attendedTokens(begin, end, windowSize);
    return 2 * activeParameters * (end - begin) + 4 * attentionHeads * headDim * attended;
  }

  /** Milliseconds of prompt tokens `[begin, end)`. */
  chunkMs(begin: number, end: number): number {
    return (this.chunkFlops(begin, end) / this.#flops) * 1e3;
  }

  /** Milliseconds of one decode step of several requests, each at its position; 0 for none. */
  decodeMs(positions: readonly number[]): number {
    if (positions.length === 0) return 0;
    const { activeParameters, layers, kvBytesPerTokenAndLayer, parameterBytes = 2 } = this.#model;
    let flops = 0;
    let bytes = activeParameters * parameterBytes;
    for (const position of positions) {
      flops += this.chunkFlops(position, position + 1);
      for (const { windowSize, count } of layers) {
        bytes += count * kvBytesPerTokenAndLayer * attendedTokens(position, position + 1, windowSize);
      }
    }
    return Math.max(flops / this.#flops, bytes / this.#bytesPerSecond) * 1e3;
  }
}

/** Sum over positions `p` in `[begin, end)` of `min(p + 1, window)`. */
function attendedTokens(begin: number, end: number, windowSize: number | null): number {
  if (windowSize === null) return triangle(end) - triangle(begin);
  const grows = Math.min(Math.max(windowSize, begin), end);
  return triangle(grows) - triangle(begin) + (end - grows) * windowSize;
}

/** 1 + 2 + ... + n */
function triangle(n: number): number {
  return (n * (n + 1)) / 2;
}
