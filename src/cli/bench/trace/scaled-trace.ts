import { UsageError } from '../../usage-error.js';
import { TRACE_BLOCK_TOKENS, type TraceRequest } from '../request-trace.js';

/** A day: an arrival later than that is a broken timestamp. */
const LONGEST_REPLAY_MS = 86_400_000;

/** One request as it is replayed. */
export interface ScaledRequest {
  /** After the first request of the trace. */
  readonly arrivalMs: number;
  readonly promptTokens: number;
  readonly maxTokens: number;
  readonly hashIds: readonly number[];
}

/** A trace as it is replayed. */
export interface ScaledTrace {
  readonly requests: readonly ScaledRequest[];
  /** Tokens that one hash id stands for. */
  readonly blockTokens: number;
}

/**
 * Scales a trace in time and in length. Prompts share as many hash ids as before: whole ids scale exactly, the rest behind them keeps at
 * least one token. Every request generates at least one token.
 * @param lengthScale times 512 is a whole number
 * @throws UsageError for arrivals that are spread over more than a day
 */
export function scaleTrace(trace: readonly TraceRequest[], speedUp: number, lengthScale: number): ScaledTrace {
  const blockTokens = TRACE_BLOCK_TOKENS * lengthScale;
  const startMs = trace[0]?.timestampMs ?? 0;
  const requests = trace.map(({ timestampMs, inputTokens, outputTokens, hashIds }) => {
    const wholeIds = hashIds.length - 1;
    const rest = inputTokens - wholeIds * TRACE_BLOCK_TOKENS;
    return {
      arrivalMs: (timestampMs - startMs) / speedUp,
      promptTokens: wholeIds * blockTokens + Math.max(1, Math.round(rest * lengthScale)),
      maxTokens: Math.max(1, Math.round(outputTokens * lengthScale)),
      hashIds,
    };
  });
  const lastMs = requests.at(-1)?.arrivalMs ?? 0;
  if (lastMs > LONGEST_REPLAY_MS) {
    throw new UsageError(
      `--speed-up: the last of ${trace.length} requests would arrive after ${Math.round(lastMs / 3_600_000)} hours, at most 24 are replayed; ` +
        'raise --speed-up, lower --requests or check the timestamps (they are milliseconds)',
    );
  }
  return { requests, blockTokens };
}
