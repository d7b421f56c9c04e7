import { type Sampling, TINY_MODEL, type TinyModelConfig } from '../../../src/executor/engines/tiny/index.js';
import type { ScheduleStyle, TransferPolicy } from '../../../src/executor/request.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';
import type { TinySide } from './tiny-instance.js';

/** One random life of a context and a generation server, and of the server that does both. */
export interface TinyCase {
  readonly seed: number;
  readonly model: TinyModelConfig;
  readonly dtype: 'float32' | 'bfloat16';
  readonly sampling: Sampling;
  readonly context: TinySide;
  readonly generation: TinySide;
  readonly aggregate: TinySide;
  readonly scheduleStyle: ScheduleStyle;
  readonly transferPolicy: TransferPolicy;
  /** Waves run one after another, the requests of one together. */
  readonly waves: readonly (readonly TinyPrompt[])[];
  /** Part of the turns in which an agent moves nothing. */
  readonly idleShare: number;
}

export interface TinyPrompt {
  readonly tokens: Uint32Array;
  readonly maxTokens: number;
  /** The token that one server says at this index shall end the answer; null: nothing but `maxTokens` does. */
  readonly stopIndex: number | null;
  readonly stopTokens?: readonly number[];
}

const MODELS: readonly TinyModelConfig[] = [
  TINY_MODEL,
  {
    ...TINY_MODEL,
    layers: [
      { windowSize: 9, sinkTokens: 3 },
      { windowSize: null },
      { windowSize: 9, sinkTokens: 3 },
      { windowSize: null },
    ],
  },
  { ...TINY_MODEL, layers: [{ windowSize: 8 }, { windowSize: 8 }, { windowSize: 21 }, { windowSize: null }] },
];

export class Choices {
  readonly random: () => number;

  constructor(seed: number) {
    this.random = seededRandom(seed);
  }

  pick(bound: number): number {
    return Math.floor(this.random() * bound);
  }

  one<T>(...choices: readonly T[]): T {
    return choices[this.pick(choices.length)] as T;
  }
}

export function randomCase(seed: number, fixed: Partial<TinyCase> = {}): TinyCase {
  const draw = new Choices(seed);
  const waves = prompts(draw);
  const longest = Math.max(...waves.flat().map(({ tokens, maxTokens }) => tokens.length + maxTokens));
  const context = side(draw, longest, null);
  const generation = side(draw, longest, context.tokensPerBlock);
  const scheduleStyle = draw.one('generation_first', 'generation_first', 'context_first');
  const pipelined = scheduleStyle === 'generation_first' && draw.random() < 0.8;
  return {
    seed,
    model: draw.one(...MODELS),
    dtype: draw.one('float32', 'bfloat16'),
    sampling: draw.one<Sampling>(
      { kind: 'greedy' },
      { kind: 'seeded', seed: draw.pick(1000), temperature: draw.one(0.7, 1) },
    ),
    context,
    generation,
    aggregate: { ...side(draw, longest, null), tpSize: 1, reuse: false, partialReuse: false },
    scheduleStyle,
    transferPolicy: { pipelined, earlyPrefix: pipelined && draw.random() < 0.8 },
    waves,
    idleShare: draw.one(0, 0.5, 0.9),
    ...fixed,
  };
}

function side(draw: Choices, longest: number, peerTokensPerBlock: number | null): TinySide {
  const tokensPerBlock = draw.one(2, 4, 4, 8);
  const blocks = Math.ceil(longest / tokensPerBlock) + 1;
  return {
    tpSize: draw.one(1, 1, 2, 4),
    tokensPerBlock,
    manager: draw.one('growing', 'reserving'),
    partialReuse: draw.random() < 0.4,
    reuse: true,
    // From one request at a time, with everything evicted for the next, to plenty.
    slotCount: Math.ceil(blocks * draw.one(1.1, 2, 4)),
    chunkTokens: draw.one(3, 4, 7, 8, 16, 64),
    tokenBudget: draw.one(9, 32, 128),
    schedule: draw.one('plain', 'overlap'),
    blockLayout: draw.one('HND', 'NHD'),
    poolLayout: draw.one('per-layer', 'per-block'),
    hostSlotCount: draw.one(0, 0, blocks),
    senderTokensPerBlock: peerTokensPerBlock !== null && draw.random() < 0.5 ? peerTokensPerBlock : null,
    seed: 1 + draw.pick(1000),
  };
}

/** Later prompts often begin like earlier ones. */
function prompts(draw: Choices): TinyPrompt[][] {
  const earlier: Uint32Array[] = [];
  return Array.from({ length: draw.one(1, 2, 2) }, (_, wave) =>
    Array.from({ length: wave === 0 ? 1 : draw.one(1, 2) }, () => {
      const length = 1 + draw.pick(44);
      const tokens = Uint32Array.from({ length }, () => draw.pick(1024));
      const model = earlier[draw.pick(earlier.length)];
      if (model !== undefined && draw.random() < 0.8)
        tokens.set(model.subarray(0, draw.pick(Math.min(model.length, length) + 1)));
      earlier.push(tokens);
      const maxTokens = 1 + draw.pick(8);
      return { tokens, maxTokens, stopIndex: draw.random() < 0.3 ? draw.pick(maxTokens) : null };
    }),
  );
}
