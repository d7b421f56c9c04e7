import { describe, expect, it } from 'vitest';
import { tinyServeEngine } from '../../../src/serve/engine/tiny-serve-engine.js';
import { readChat, readCompletion } from '../../../src/serve/front/answer-request.js';
import { chatSchema, completionSchema } from '../../../src/serve/front/answer-schema.js';
import { ApiError } from '../../../src/serve/front/openai-error.js';

const engine = tinyServeEngine({ max_model_tokens: 64, cache_tokens: 64 });
const limits = { engine, maxPromptTokens: null };
const completion = (fields: object) => readCompletion({ model: 'kvt-tiny', prompt: 'abc', ...fields }, limits);
const chat = (fields: object) =>
  readChat({ model: 'kvt-tiny', messages: [{ role: 'user', content: 'abc' }], ...fields }, limits);

function refusal(act: () => unknown) {
  try {
    act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const { message, param, code, type } = error.body.error;
    return { status: error.status, message, param, code, type };
  }
  throw new Error('it was accepted');
}

describe('what is accepted', () => {
  it('takes OpenAI’s defaults', () => {
    expect(completion({ seed: 7 })).toEqual({
      promptTokens: Uint32Array.of(97, 98, 99),
      maxTokens: 16,
      stop: [],
      sampling: { temperature: 1, topP: 1, seed: 7 },
      ignoreEnd: false,
      stream: false,
      includeUsage: false,
      returnTokenIds: false,
    });
    expect(chat({}).maxTokens).toBe(64 - 6);
  });

  it('draws a seed of its own for each request that names none', () => {
    const seeds = Array.from({ length: 8 }, () => completion({}).sampling.seed);
    expect(new Set(seeds).size).toBeGreaterThan(1);
    expect(seeds.every((seed) => Number.isInteger(seed) && seed >= 0 && seed < 2 ** 31)).toBe(true);
  });

  it.each<[object, readonly number[]]>([
    [{ prompt: 'ab' }, [97, 98]],
    [{ prompt: ['ab'] }, [97, 98]],
    [{ prompt: [1, 256, 260] }, [1, 256, 260]],
    [{ prompt: [[1, 2]] }, [1, 2]],
  ])('prompt %j', (fields, tokens) => {
    expect([...completion(fields).promptTokens]).toEqual(tokens);
  });

  it('reads text parts, developer messages and both names of the limit', () => {
    const parts = [
      { type: 'text', text: 'a' },
      { type: 'text', text: 'b' },
    ];
    expect([...chat({ messages: [{ role: 'developer', content: parts }] }).promptTokens]).toEqual([
      257, 97, 98, 256, 259,
    ]);
    expect(chat({ max_tokens: 5 }).maxTokens).toBe(5);
    expect(chat({ max_completion_tokens: 6, max_tokens: 5 }).maxTokens).toBe(6);
  });

  it('takes values that change nothing of what it does not have', () => {
    const neutral = {
      n: 1,
      best_of: 1,
      echo: false,
      logit_bias: {},
      presence_penalty: 0,
      user: 'me',
      use_beam_search: false,
    };
    expect(completion({ ...neutral, stop: null, temperature: null, suffix: null }).maxTokens).toBe(16);
    expect(
      chat({ tools: null, response_format: { type: 'text' }, logprobs: false, store: false, metadata: { a: 'b' } })
        .stop,
    ).toEqual([]);
  });

  it('takes one stop string or several', () => {
    expect(completion({ stop: 'x' }).stop).toEqual(['x']);
    expect(completion({ stop: ['x', 'yz'] }).stop).toEqual(['x', 'yz']);
  });
});

describe('what is refused', () => {
  it.each<[string, object, string | null, RegExp]>([
    ['n', { n: 2 }, 'n', /must be 1: a request has one answer \(pipelined transfer/],
    ['best_of', { best_of: 3 }, 'best_of', /must be 1/],
    ['beams', { use_beam_search: true }, 'use_beam_search', /must be false/],
    ['max_tokens 0', { max_tokens: 0 }, 'max_tokens', /whole number from 1/],
    ['max_tokens text', { max_tokens: '5' }, 'max_tokens', /whole number from 1/],
    [
      'max_tokens huge',
      { max_tokens: 62 },
      'max_tokens',
      /max_tokens is 62; kvt-tiny has room for 64 together, so that max_tokens may be 61/,
    ],
    ['temperature', { temperature: 2.5 }, 'temperature', /number from 0 to 2/],
    ['top_p', { top_p: 0 }, 'top_p', /above 0/],
    ['top_p above', { top_p: 1.1 }, 'top_p', /number from 0 to 1/],
    ['seed', { seed: 1.5 }, 'seed', /whole number/],
    ['stream', { stream: 'yes' }, 'stream', /true or false/],
    ['stop empty', { stop: '' }, 'stop', /must not be empty|text or a list/],
    ['stop many', { stop: ['a', 'b', 'c', 'd', 'e'] }, 'stop', /stop has 5 entries; at most 4/],
    ['penalty', { presence_penalty: 0.5 }, 'presence_penalty', /leave it at 0/],
    ['bias', { logit_bias: { '1': 2 } }, 'logit_bias', /leave it out/],
    ['bias as a list', { logit_bias: [] }, 'logit_bias', /leave it out/],
    ['logprobs', { logprobs: 2 }, 'logprobs', /no probabilities/],
    ['echo', { echo: true }, 'echo', /leave it at false/],
    ['unknown', { max_tokenz: 3 }, 'max_tokenz', /is not a parameter of this endpoint; did you mean max_tokens\?/],
    ['empty prompt', { prompt: '' }, 'prompt', /is empty/],
    ['empty list', { prompt: [] }, 'prompt', /is empty/],
    ['two prompts', { prompt: ['a', 'b'] }, 'prompt', /several prompts as several requests/],
    ['token id', { prompt: [1, 261] }, 'prompt', /prompt\[1\] is 261; token ids of kvt-tiny are 0 to 260/],
    ['negative id', { prompt: [-1] }, 'prompt', /prompt\[0\] is -1/],
    ['fractions', { prompt: [1.5] }, 'prompt', /one text or one list/],
    ['long prompt', { prompt: 'x'.repeat(64) }, 'prompt', /prompt has 64 tokens; kvt-tiny takes at most 63/],
    ['no prompt', { prompt: undefined }, 'prompt', /one text or one list/],
    ['messages', { messages: [] }, 'messages', /chats go to \/v1\/chat\/completions/],
  ])('completion: %s', (_, fields, param, message) => {
    const refused = refusal(() => completion(fields));
    expect(refused).toMatchObject({ status: 400, param, type: 'invalid_request_error' });
    expect(refused.message).toMatch(message);
  });

  it.each<[string, object, string, RegExp]>([
    ['no messages', { messages: [] }, 'messages', /at least one/],
    ['role', { messages: [{ role: 'robot', content: '' }] }, 'messages.0.role', /system, developer, user/],
    [
      'image',
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: {} }] }] },
      'messages.0.content',
      /text/,
    ],
    ['no content', { messages: [{ role: 'user' }] }, 'messages.0.content', /text or a list/],
    ['tools', { tools: [{ type: 'function' }] }, 'tools', /no tools/],
    [
      'json',
      { response_format: { type: 'json_object' } },
      'response_format.type',
      /^response_format\.type must be text: answers/,
    ],
    ['prompt', { prompt: 'a' }, 'prompt', /not a parameter of this endpoint; prompts go to \/v1\/completions/],
    ['limit', { max_completion_tokens: 60 }, 'max_completion_tokens', /max_completion_tokens may be 58/],
  ])('chat: %s', (_, fields, param, message) => {
    const refused = refusal(() => chat(fields));
    expect(refused).toMatchObject({ status: 400, param });
    expect(refused.message).toMatch(message);
  });

  it('names what is missing', () => {
    expect(refusal(() => readCompletion({ prompt: 'a' }, limits)).message).toBe('model is missing; it must be text');
    expect(refusal(() => readChat({ model: 'kvt-tiny' }, limits)).message).toBe(
      'messages is missing; it must be a list of messages',
    );
  });

  it('has words of its own for every parameter and every kind of value', () => {
    const values = [
      true,
      false,
      0,
      1.5,
      -1,
      1e30,
      'x',
      '',
      [],
      [[]],
      [1],
      [{}],
      {},
      { type: 'x' },
      { include_usage: 3 },
    ];
    let refused = 0;
    for (const [schema, act] of [
      [completionSchema, completion],
      [chatSchema, chat],
    ] as const)
      for (const key of Object.keys(schema.shape))
        for (const value of values) {
          try {
            act({ [key]: value });
          } catch (error) {
            if (!(error instanceof ApiError)) throw error;
            refused += 1;
            const { message } = error.body.error;
            expect(message).not.toMatch(/invalid|expected|received|unrecognized|undefined|\bstring\b|\binteger\b/i);
            expect(message).toMatch(new RegExp(`^(model |${key})`));
          }
        }
    expect(refused).toBeGreaterThan(400);
  });

  it.each([[null], [[]], ['text'], [3]])('a body that is %j', (body) => {
    expect(refusal(() => readCompletion(body, limits))).toMatchObject({
      status: 400,
      message: 'the body must be a JSON object',
    });
  });

  it.each<[string, () => unknown, RegExp]>([
    ['token ids', () => completion({ prompt: new Array(2e6).fill(1) }), /prompt has 2000000 entries; at most 64/],
    ['nested token ids', () => completion({ prompt: [new Array(2e6).fill('x')] }), /prompt.0 has 2000000 entries/],
    ['prompts', () => completion({ prompt: new Array(2e6).fill('x') }), /prompt has 2000000 entries/],
    ['messages', () => chat({ messages: new Array(2e6).fill(0) }), /messages has 2000000 entries; at most 4096/],
    [
      'parts',
      () => chat({ messages: [{ role: 'user', content: new Array(2e6).fill(0) }] }),
      /messages.0.content has 2000000 entries/,
    ],
    ['stops', () => completion({ stop: new Array(2e6).fill('x') }), /stop has 2000000 entries; at most 4/],
    [
      'parameters',
      () => completion(Object.fromEntries(Array.from({ length: 1e5 }, (_, index) => [`x${index}`, 0]))),
      /more than 64 parameters/,
    ],
  ])('millions of %s, before each is looked at', (_, act, message) => {
    expect(refusal(act).message).toMatch(message);
  });

  it('answers 404 for another model', () => {
    expect(refusal(() => completion({ model: 'gpt-4' }))).toMatchObject({
      status: 404,
      param: 'model',
      code: 'model_not_found',
    });
  });

  it('names the step size when prompts cannot be split', () => {
    const refused = refusal(() =>
      readCompletion({ model: 'kvt-tiny', prompt: 'abcdef' }, { engine, maxPromptTokens: 5 }),
    );
    expect(refused).toMatchObject({ status: 400, code: 'context_length_exceeded' });
    expect(refused.message).toMatch(/at most 5 \(max_num_tokens\)/);
  });
});
