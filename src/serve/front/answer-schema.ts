import { z } from 'zod';
import { badRequest } from './openai-error.js';

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
const PLAIN_TEXT = 'must be text: answers have no other format; leave response_format out';
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
/** A body of `/v1/completions`. */
export const completionSchema = z.strictObject({
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

const part = z.object(
  { type: z.literal('text', 'must be text; this server reads nothing else'), text },
  'must be a map with type and text',
);
const messageShape = {
  role: z.enum(
    ['system', 'developer', 'user', 'assistant', 'tool'],
    'must be system, developer, user, assistant or tool',
  ),
  content: z.union([text, z.array(part)], 'must be text or a list of text parts'),
  tool_calls: absent('this server has no tools'),
};
const message = z.object(messageShape, 'must be a map with role and content');
/** A body of `/v1/chat/completions`. */
export const chatSchema = z.strictObject({
  ...sharedShape,
  messages: z.array(message, 'must be a list of messages').min(1, 'must have at least one message'),
  max_completion_tokens: wholeNumber(1, 0x7fff_ffff),
  tools: only([], 'is not supported: this server has no tools'),
  tool_choice: only(['none', 'auto'], 'is not supported: this server has no tools'),
  parallel_tool_calls: ignored,
  response_format: z.strictObject({ type: z.literal('text', PLAIN_TEXT) }, PLAIN_TEXT).nullish(),
  logprobs: only([false], 'must be false: this server returns no probabilities'),
  top_logprobs: absent('this server returns no probabilities'),
  modalities: ignored,
  reasoning_effort: ignored,
  verbosity: ignored,
});

/** Entries that are looked at, at most: a body of megabytes must not be checked entry by entry before it is refused. */
const MAX_PARAMETERS = 64;
export const MAX_MESSAGES = 4096;
const MAX_PARTS = 256;

/** What both have. */
export type SharedFields = z.output<z.ZodObject<typeof sharedShape>>;

function isEmptyMap(value: unknown): boolean {
  if (value === undefined || value === null) return true;
  return typeof value === 'object' && !Array.isArray(value) && Object.keys(value).length === 0;
}

/**
 * @param most entries of each list
 * @throws ApiError 400 for a body with more
 */
export function checkCounts(body: unknown, most: Readonly<Record<string, number>>): void {
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
