import { z } from 'zod';
import { KeySpelling } from '../../config/key-spelling.js';
import { nearestKey } from '../../config/nearest-key.js';
import type { ConfigProblem } from '../../config/problem.js';
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
import type { ServeEngine, ServeEngineSection } from './serve-engine.js';

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

const ANY_SECTION: ServeEngineSection = { role: 'context', tensorParallelSize: 1 };

/**
 * The tiny engine behind an API: a real transformer with random weights over bytes. Its answers mean nothing; that they are the right ones
 * proves every page that was moved for them.
 * @throws ConfigError with every setting to change in `details.problems`
 */
export function tinyServeEngine(
  given: Readonly<Record<string, unknown>>,
  section: ServeEngineSection = ANY_SECTION,
): ServeEngine {
  const { seed, maxModelTokens, tokensPerBlock, cacheTokens, dtype } = settingsOf(given, section);
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
      const problem = splitProblem(size);
      if (problem !== null) throw rejection([problem]);
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

const KNOWN = Object.keys(settingsSchema.shape);

function settingsOf(
  given: Readonly<Record<string, unknown>>,
  section: ServeEngineSection,
): z.output<typeof settingsSchema> {
  const problems: ConfigProblem[] = [];
  const named: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(given)) {
    const name = camelCase(key);
    if (!KNOWN.includes(name)) problems.push({ setting: `engine.${key}`, message: unknownText(key) });
    else if (Object.hasOwn(named, name))
      problems.push({ setting: `engine.${name}`, message: 'is given in two spellings; remove one' });
    else named[name] = value;
  }
  const parsed = settingsSchema.safeParse(named);
  for (const { path, message } of parsed.error?.issues ?? []) {
    const [name = ''] = path.map(String);
    problems.push({ setting: `engine.${name}`, message: `${message}, got ${shown(named[name])}` });
  }
  if (parsed.success && parsed.data.cacheTokens < parsed.data.maxModelTokens)
    problems.push({
      setting: 'engine.cacheTokens',
      message: `is ${parsed.data.cacheTokens}; it must hold one request of maxModelTokens, ${parsed.data.maxModelTokens}`,
    });
  const split = splitProblem(section.tensorParallelSize);
  if (split !== null) problems.push(split);
  if (!parsed.success || problems.length > 0) throw rejection(problems, given);
  return parsed.data;
}

function unknownText(key: string): string {
  const nearest = nearestKey(key, KNOWN);
  return `is not a setting of the tiny engine: ${nearest === null ? `known are ${KNOWN.join(', ')}` : `did you mean ${nearest}?`}`;
}

function splitProblem(tensorParallelSize: number): ConfigProblem | null {
  const { attentionHeads } = TINY_MODEL;
  if (attentionHeads % tensorParallelSize === 0) return null;
  const message = `is ${tensorParallelSize}; the tiny engine has ${attentionHeads} heads to split, use a divisor`;
  return { setting: 'tensorParallelSize', message };
}

function rejection(found: readonly ConfigProblem[], given: Readonly<Record<string, unknown>> = {}): ConfigError {
  const spelling = new KeySpelling(given, [...KNOWN, 'tensorParallelSize'], 'snake_case');
  const problems = found.map(({ setting, message }) => ({ setting, message: spelling.text(message) }));
  const texts = problems.map(({ setting, message }) => `${spelling.text(setting)} ${message}`);
  return new ConfigError(texts.join('\n'), { details: { problems } });
}

function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 64));
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'a map';
  return value === null ? 'nothing' : String(value);
}
