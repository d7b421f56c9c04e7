import { z } from 'zod';
import { nearestKey } from '../../config/nearest-key.js';
import { camelCase } from '../../config/setting-keys.js';
import { ConfigError } from '../../errors.js';
import {
  LocalTensorGroup,
  type Sampling,
  TINY_MODEL,
  TinyEngine,
  TinyModel,
  tinyLayerGroups,
} from '../../executor/engines/tiny/index.js';
import type { LlmRequest } from '../../executor/request.js';
import { buildPageTable, kvHeadShard } from '../../mapping/index.js';
import { BYTE_VOCABULARY, ByteCodec } from '../text/byte-codec.js';
import type { ServeEngine } from './serve-engine.js';

const wholeNumber = (min: number, max: number) => {
  const rule = `must be a whole number from ${min} to ${max}`;
  return z.int(rule).min(min, rule).max(max, rule);
};

const settingsSchema = z.object({
  /** Of the weights. */
  seed: wholeNumber(0, 0x7fff_ffff).default(1),
  maxModelTokens: wholeNumber(16, 65_536).default(2048),
  tokensPerBlock: wholeNumber(1, 256).default(16),
  /** Tokens that the pages of each layer group hold, over all requests of one server. */
  cacheTokens: wholeNumber(16, 16 * 1024 * 1024).default(65_536),
  dtype: z.enum(['float32', 'bfloat16'], 'must be float32 or bfloat16').default('bfloat16'),
});

/**
 * The tiny engine behind an API: a real transformer with random weights over bytes. Its answers mean nothing; that they are the right ones
 * proves every page that was moved for them.
 * @throws ConfigError naming the setting
 */
export function tinyServeEngine(given: Readonly<Record<string, unknown>>): ServeEngine {
  const { seed, maxModelTokens, tokensPerBlock, cacheTokens, dtype } = settingsOf(given);
  if (cacheTokens < maxModelTokens)
    throw new ConfigError(
      `engine: cache_tokens is ${cacheTokens}; it must hold one request of max_model_tokens, ${maxModelTokens}`,
    );
  const config = { ...TINY_MODEL, seed, vocabularySize: BYTE_VOCABULARY };
  let shared: TinyModel | null = null;
  return {
    model: 'kvt-tiny',
    maxModelTokens,
    vocabularySize: BYTE_VOCABULARY,
    tokensPerBlock,
    identity: `seed ${seed}, ${dtype}`,
    codec: new ByteCodec(),
    ranks: ({ tensorParallelSize: size }) => {
      if (config.attentionHeads % size !== 0)
        throw new ConfigError(
          `tensor_parallel_size is ${size}; the tiny engine has ${config.attentionHeads} heads to split, use a divisor`,
        );
      shared ??= new TinyModel(config);
      const model = shared;
      const layerGroups = tinyLayerGroups(config, {
        tokensPerBlock,
        slotCount: Math.ceil(cacheTokens / tokensPerBlock),
      });
      return LocalTensorGroup.of(size).map((tensorGroup, rank) => ({
        layerGroups,
        layout: buildPageTable({
          groups: layerGroups,
          kvHeads: kvHeadShard(config.kvHeads, size, rank).headsPerRank,
          headDim: config.headDim,
          dtype,
          poolLayout: 'per-layer',
          blockLayout: 'HND',
        }),
        createEngine: ({ clock, agent, cache, pageTable }) =>
          new TinyEngine({ clock, agent, cache, pageTable, model, samplingOf, ...(size === 1 ? {} : { tensorGroup }) }),
      }));
    },
  };
}

function samplingOf({ sampling }: LlmRequest): Sampling {
  if (sampling === null || sampling === undefined || sampling.temperature === 0) return { kind: 'greedy' };
  return { kind: 'seeded', ...sampling };
}

function settingsOf(given: Readonly<Record<string, unknown>>): z.output<typeof settingsSchema> {
  const known = Object.keys(settingsSchema.shape);
  const named = Object.fromEntries(
    Object.entries(given).map(([key, value]) => {
      if (known.includes(camelCase(key))) return [camelCase(key), value];
      const nearest = nearestKey(key, known);
      throw new ConfigError(
        `engine.${key} is not a setting of the tiny engine: ${nearest === null ? `known are ${known.join(', ')}` : `did you mean ${nearest}?`}`,
      );
    }),
  );
  const parsed = settingsSchema.safeParse(named);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  throw new ConfigError(`engine.${issue?.path.join('.')} ${issue?.message}`);
}
