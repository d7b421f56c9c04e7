import { randomInt } from 'node:crypto';
import { z } from 'zod';
import { nearestKey } from '../../config/nearest-key.js';
import type { SamplingParams } from '../../executor/request.js';
import type { ServeEngine } from '../engine/serve-engine.js';
import type { ChatMessage } from '../text/text-codec.js';
import { ApiError, badRequest } from './openai-error.js';

/** What a client asks for, whichever endpoint it used. */
export interface AnswerRequest {
  readonly promptTokens: Uint32Array;
  readonly maxTokens: number;
  readonly stop: readonly string[];
  readonly sampling: SamplingParams;
  /** Tokens that end an answer do not. */
  readonly ignoreEnd: boolean;
  readonly stream: boolean;
  readonly includeUsage: boolean;
  readonly returnTokenIds: boolean;
}

/** What an answer may be at most, and what it is about. */
export interface AnswerLimits {
  readonly engine: ServeEngine;
  /** Of one forward step, when a prompt cannot be split into chunks; null: any. */
  readonly maxPromptTokens: number | null;
}

/** Tokens of a completion that names no limit, as at OpenAI. */
const DEFAULT_COMPLETION_TOKENS = 16;
const MAX_STOP_LENGTH = 256;

const wholeNumber = (min: number, max: number) => {
  const rule = `must be a whole number from ${min} to ${max}`;
  return z.int(rule).min(min, rule).max(max, rule).nullish();
};
const numberFrom = (min: number, max: number) => {
  const rule = `must be a number from ${min} to ${max}`;
  return z.number(rule).min(min, rule).max(max, rule).nullish();
};
const flag = z.boolean('must be true or false').nullish();
const text = z.string('must be text');
const ignored = z.unknown().optional();
const stopText = text
  .min(1, 'must not be empty')
  .max(MAX_STOP_LENGTH, `must have at most ${MAX_STOP_LENGTH} characters`);
/** A setting that this server does not have: only the value that changes nothing. */
const only = (values: readonly (string | number | boolean | null)[], why: string) =>
  z
    .unknown()
    .refine((value) => value === undefined || value === null || values.some((one) => one === value), why)
    .optional();
const ONE_ANSWER = 'must be 1: a request has one answer (pipelined transfer moves the cache of one sequence)';
const absent = (what: string) => only([], `is not supported: ${what}`);

const sharedShape = {
  model: text.min(1, 'must not be empty'),
  max_tokens: wholeNumber(1, 0x7fff_ffff),
  temperature: numberFrom(0, 2),
  top_p: numberFrom(0, 1),
  n: only([1], ONE_ANSWER),
  stream: flag,
  stream_options: z
    .strictObject({ include_usage: flag, include_obfuscation: ignored }, 'must be a map with include_usage')
    .nullish(),
  stop: z
    .union(
      [stopText, z.array(stopText).max(4, 'must have at most 4 entries')],
      'must be text or a list of up to 4 texts',
    )
    .nullish(),
  seed: z.int('must be a whole number').nullish(),
  presence_penalty: only([0], 'is not supported: leave it at 0'),
  frequency_penalty: only([0], 'is not supported: leave it at 0'),
  logit_bias: z.unknown().refine(isEmptyMap, 'is not supported: leave it out').optional(),
  use_beam_search: only(
    [false],
    'must be false: beams would need several sequences, and a transfer moves the cache of one',
  ),
  /** Beyond OpenAI's: as in other servers. */
  ignore_eos: flag,
  return_token_ids: flag,
  user: ignored,
  metadata: ignored,
  store: only([false], 'is not supported: nothing is stored'),
  service_tier: ignored,
  safety_identifier: ignored,
  prompt_cache_key: ignored,
};

const tokenList = z.array(z.int('must be token ids'), 'must be a list of token ids');
const completionSchema = z.strictObject({
  ...sharedShape,
  prompt: z.union(
    [text, tokenList, z.array(text).length(1), z.array(tokenList).length(1)],
    'must be one text or one list of token ids; send several prompts as several requests',
  ),
  best_of: only([1], ONE_ANSWER),
  echo: only([false], 'is not supported: leave it at false'),
  suffix: absent('leave it out'),
  logprobs: absent('this server returns no probabilities'),
});

const part = z.object({ type: z.literal('text', 'must be text; this server reads nothing else'), text });
const message = z.object({
  role: z.enum(
    ['system', 'developer', 'user', 'assistant', 'tool'],
    'must be system, developer, user, assistant or tool',
  ),
  content: z.union([text, z.array(part)], 'must be text or a list of text parts'),
  tool_calls: absent('this server has no tools'),
});
const chatSchema = z.strictObject({
  ...sharedShape,
  messages: z.array(message, 'must be a list of messages').min(1, 'must have at least one message'),
  max_completion_tokens: wholeNumber(1, 0x7fff_ffff),
  tools: only([], 'is not supported: this server has no tools'),
  tool_choice: only(['none', 'auto'], 'is not supported: this server has no tools'),
  parallel_tool_calls: ignored,
  response_format: z.strictObject({ type: z.literal('text') }, 'is not supported: answers are plain text').nullish(),
  logprobs: only([false], 'must be false: this server returns no probabilities'),
  top_logprobs: absent('this server returns no probabilities'),
  modalities: ignored,
  reasoning_effort: ignored,
  verbosity: ignored,
});

/** Entries that are looked at, at most: a body of megabytes must not be checked entry by entry before it is refused. */
const MAX_PARAMETERS = 64;
const MAX_MESSAGES = 4096;
const MAX_PARTS = 256;

type Shared = z.output<z.ZodObject<typeof sharedShape>>;

/** @throws ApiError 400 naming the parameter and its rule, 404 for another model */
export function readCompletion(body: unknown, limits: AnswerLimits): AnswerRequest {
  checkCounts(body, { prompt: limits.engine.maxModelTokens, stop: 4 });
  const fields = parsed(completionSchema, body);
  checkModel(fields.model, limits.engine);
  const [prompt] = isNested(fields.prompt) ? fields.prompt : [fields.prompt];
  const tokens =
    typeof prompt === 'string' ? limits.engine.codec.encode(prompt) : checkedIds(prompt ?? [], limits.engine);
  const most = fields.max_tokens ?? Math.min(DEFAULT_COMPLETION_TOKENS, room(tokens, limits));
  return answerRequest(fields, tokens, most, 'max_tokens', 'prompt', limits);
}

/** @throws as `readCompletion` */
export function readChat(body: unknown, limits: AnswerLimits): AnswerRequest {
  checkCounts(body, { messages: MAX_MESSAGES, stop: 4 });
  const fields = parsed(chatSchema, body);
  checkModel(fields.model, limits.engine);
  const messages = fields.messages.map(
    ({ role, content }): ChatMessage => ({
      role: role === 'developer' ? 'system' : role,
      content: typeof content === 'string' ? content : content.map((one) => one.text).join(''),
    }),
  );
  const tokens = limits.engine.codec.encodeChat(messages);
  const param =
    fields.max_completion_tokens === null || fields.max_completion_tokens === undefined
      ? 'max_tokens'
      : 'max_completion_tokens';
  const most = fields.max_completion_tokens ?? fields.max_tokens ?? Math.max(1, room(tokens, limits));
  return answerRequest(fields, tokens, most, param, 'messages', limits);
}

function answerRequest(
  fields: Shared,
  promptTokens: Uint32Array,
  maxTokens: number,
  maxParam: string,
  promptParam: string,
  { engine, maxPromptTokens }: AnswerLimits,
): AnswerRequest {
  const { length } = promptTokens;
  const { model, maxModelTokens } = engine;
  if (length === 0) throw badRequest(`${promptParam} is empty; a request needs at least one token`, promptParam);
  if (maxPromptTokens !== null && length > maxPromptTokens)
    throw tooLong(
      `${promptParam} has ${length} tokens; without chunked prefill at most ${maxPromptTokens} (max_num_tokens)`,
      promptParam,
    );
  if (length >= maxModelTokens)
    throw tooLong(
      `${promptParam} has ${length} tokens; ${model} takes at most ${maxModelTokens - 1} and one of an answer`,
      promptParam,
    );
  if (length + maxTokens > maxModelTokens)
    throw tooLong(
      `${promptParam} has ${length} tokens and ${maxParam} is ${maxTokens}; ${model} has room for ${maxModelTokens} together, so that ${maxParam} may be ${maxModelTokens - length}`,
      maxParam,
    );
  const { top_p: topP, stop } = fields;
  if (topP === 0) throw badRequest('top_p must be above 0', 'top_p');
  return {
    promptTokens,
    maxTokens,
    stop: stop === null || stop === undefined ? [] : typeof stop === 'string' ? [stop] : stop,
    sampling: {
      temperature: fields.temperature ?? 1,
      topP: topP ?? 1,
      // Chosen here: both servers draw from it, and a second try draws the same.
      seed: fields.seed ?? randomInt(2 ** 31),
    },
    ignoreEnd: fields.ignore_eos === true,
    stream: fields.stream === true,
    includeUsage: fields.stream_options?.include_usage === true,
    returnTokenIds: fields.return_token_ids === true,
  };
}

function parsed<S extends z.ZodObject>(schema: S, body: unknown): z.output<S> {
  const result = schema.safeParse(body);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  const path = issue?.path.map(String).join('.') ?? '';
  if (issue?.code === 'unrecognized_keys') {
    const key = (issue.keys[0] ?? '').slice(0, 64);
    const name = path === '' ? key : `${path}.${key}`;
    const nearest = path === '' ? nearestKey(key, Object.keys(schema.shape)) : null;
    throw badRequest(
      `${name} is not a parameter of this endpoint${nearest === null ? '' : `; did you mean ${nearest}?`}`,
      name,
    );
  }
  if (path === '') throw badRequest('the body must be a JSON object');
  throw badRequest(`${path} ${issue?.message}`, path);
}

function checkModel(model: string, engine: ServeEngine): void {
  if (model === engine.model) return;
  throw new ApiError(
    404,
    `model ${JSON.stringify(model.slice(0, 64))} does not exist; this server has ${engine.model}`,
    {
      param: 'model',
      code: 'model_not_found',
    },
  );
}

function checkedIds(ids: readonly number[], { vocabularySize, model }: ServeEngine): Uint32Array {
  const index = ids.findIndex((id) => id < 0 || id >= vocabularySize);
  if (index >= 0)
    throw badRequest(
      `prompt[${index}] is ${ids[index]}; token ids of ${model} are 0 to ${vocabularySize - 1}`,
      'prompt',
    );
  return Uint32Array.from(ids);
}

function isNested(prompt: string | number[] | string[] | number[][]): prompt is string[] | number[][] {
  return Array.isArray(prompt) && typeof prompt[0] !== 'number' && prompt.length > 0;
}

function room(tokens: Uint32Array, { engine }: AnswerLimits): number {
  return Math.max(1, engine.maxModelTokens - tokens.length);
}

function tooLong(message: string, param: string): ApiError {
  return new ApiError(400, message, { param, code: 'context_length_exceeded' });
}

function isEmptyMap(value: unknown): boolean {
  return value === undefined || value === null || (typeof value === 'object' && Object.keys(value).length === 0);
}

/** @param most entries of each list */
function checkCounts(body: unknown, most: Readonly<Record<string, number>>): void {
  if (typeof body !== 'object' || body === null) return;
  if (Object.keys(body).length > MAX_PARAMETERS)
    throw badRequest(`the body has more than ${MAX_PARAMETERS} parameters`);
  for (const [name, count] of Object.entries(most)) {
    const list: unknown = Reflect.get(body, name);
    if (Array.isArray(list)) checkCount(list, count, name);
    if (name === 'prompt' && Array.isArray(list) && Array.isArray(list[0])) checkCount(list[0], count, 'prompt.0');
    if (name !== 'messages' || !Array.isArray(list)) continue;
    for (const [index, message] of list.entries()) {
      const content: unknown = typeof message === 'object' && message !== null ? Reflect.get(message, 'content') : null;
      if (Array.isArray(content)) checkCount(content, MAX_PARTS, `messages.${index}.content`);
    }
  }
}

function checkCount(list: readonly unknown[], most: number, param: string): void {
  if (list.length > most) throw badRequest(`${param} has ${list.length} entries; at most ${most} are possible`, param);
}
