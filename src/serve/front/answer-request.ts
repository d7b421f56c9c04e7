import { randomInt } from 'node:crypto';
import type { z } from 'zod';
import { nearestKey } from '../../config/nearest-key.js';
import type { SamplingParams } from '../../executor/request.js';
import type { ServeEngine } from '../engine/serve-engine.js';
import type { ChatMessage } from '../text/text-codec.js';
import { chatSchema, checkCounts, completionSchema, MAX_MESSAGES, type SharedFields } from './answer-schema.js';
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
  fields: SharedFields,
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
    throw badRequest(`${name} is not a parameter of this endpoint${path === '' ? hintFor(key, schema) : ''}`, name);
  }
  if (path === '') throw badRequest('the body must be a JSON object');
  const isMissing = issue?.path.length === 1 && !Object.hasOwn(body as object, path);
  throw badRequest(isMissing ? `${path} is missing; it ${issue?.message}` : `${path} ${issue?.message}`, path);
}

function hintFor(key: string, schema: z.ZodObject): string {
  if (key === 'messages') return '; chats go to /v1/chat/completions';
  if (key === 'prompt') return '; prompts go to /v1/completions';
  const nearest = nearestKey(key, Object.keys(schema.shape));
  return nearest === null ? '' : `; did you mean ${nearest}?`;
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
