import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ReferenceRequest, referenceAnswers } from '../../../src/cli/bench/serve/reference-answers.js';
import { ByteCodec } from '../../../src/serve/text/byte-codec.js';
import { ENGINE, type Front, localConfig, Served } from './served.js';

const codec = new ByteCodec();
const PROMPTS = [
  'a',
  'The KV cache of a request moves chunk by chunk, ',
  'The KV cache of a request moves chunk by chunk, and é€😀!',
  'x'.repeat(170),
];
const SAMPLINGS = [
  { temperature: 0, top_p: 1, seed: 1 },
  { temperature: 0.9, top_p: 0.9, seed: 11 },
];

/** What one server says that does it all. */
function reference(prompts: readonly Uint32Array[], maxTokens: number, ignoreEnd: boolean) {
  const requests = prompts.flatMap((promptTokens) =>
    SAMPLINGS.map(
      ({ temperature, top_p, seed }): ReferenceRequest => ({
        promptTokens,
        maxTokens,
        sampling: { temperature, topP: top_p, seed },
        ignoreEnd,
      }),
    ),
  );
  return referenceAnswers(ENGINE, requests);
}

const textOf = (tokens: readonly number[]): string => {
  const decoder = codec.decoder();
  return tokens.map((token) => decoder.push(token)).join('') + decoder.end();
};

/** Beyond OpenAI's parameters. */
const IDS = { return_token_ids: true } as object;
type WithIds = { readonly token_ids?: readonly number[] };

describe.each([
  ['pipelined, one rank a side', localConfig()],
  [
    'context first, two ranks and four',
    localConfig({
      top: { schedule_style: 'context_first' },
      context: { tensor_parallel_size: 2, cache_transceiver_config: {}, engine: { dtype: 'float32' } },
      generation: { tensor_parallel_size: 4, engine: { dtype: 'float32' } },
    }),
  ],
  [
    'overlap schedule, one rank and two',
    localConfig({
      context: { schedule: 'overlap', cache_transceiver_config: { enable_pipelined_transfer: true } },
      generation: { disable_overlap_scheduler: false, tensor_parallel_size: 2 },
    }),
  ],
])('an unmodified OpenAI client, %s', (_, config) => {
  const served = new Served();
  let front: Front;
  beforeAll(async () => {
    front = await served.front(config);
  });
  afterAll(() => served.end());
  const isFloat = JSON.stringify(config).includes('float32');
  const engine = isFloat ? { ...ENGINE, dtype: 'float32' } : ENGINE;

  it('gets the tokens of one server that does it all', async () => {
    const asked = PROMPTS.flatMap((prompt) => SAMPLINGS.map((sampling) => ({ prompt, ...sampling })));
    const right = await referenceAnswers(
      engine,
      asked.map(({ prompt, temperature, top_p, seed }) => ({
        promptTokens: codec.encode(prompt),
        maxTokens: 20,
        sampling: { temperature, topP: top_p, seed },
        ignoreEnd: false,
      })),
    );
    const answers = await Promise.all(
      asked.map((one) => front.client.completions.create({ model: 'kvt-tiny', max_tokens: 20, ...one, ...IDS })),
    );
    expect(answers.map(({ choices }) => (choices[0] as WithIds).token_ids)).toEqual(right);
    expect(answers.map(({ choices }) => choices[0]?.text)).toEqual(
      right.map((tokens) => textOf(tokens.filter((token) => token < 256))),
    );
    expect(answers.map(({ choices }) => choices[0]?.finish_reason)).toEqual(
      right.map((tokens) => ((tokens.at(-1) ?? 0) >= 256 ? 'stop' : 'length')),
    );
    expect(answers.map(({ usage }) => [usage?.prompt_tokens, usage?.completion_tokens])).toEqual(
      asked.map(({ prompt }, index) => [Buffer.byteLength(prompt), right[index]?.length]),
    );
    // Streams of the same requests, by token ids: the prompts are cached by now.
    for (const [index, { prompt, ...sampling }] of asked.entries()) {
      const stream = await front.client.completions.create({
        model: 'kvt-tiny',
        prompt: [...codec.encode(prompt)],
        max_tokens: 20,
        stream: true,
        stream_options: { include_usage: true },
        ...sampling,
        ...IDS,
      });
      const tokens: number[] = [];
      let cached = -1;
      for await (const { choices, usage } of stream) {
        tokens.push(...((choices[0] as WithIds | undefined)?.token_ids ?? []));
        cached = usage?.prompt_tokens_details?.cached_tokens ?? cached;
      }
      expect(tokens).toEqual(right[index]);
      const blocks = Math.floor((Buffer.byteLength(prompt) - 1) / ENGINE.tokens_per_block);
      expect(cached).toBe(blocks * ENGINE.tokens_per_block);
    }
  });
});

describe('an unmodified OpenAI client', () => {
  const served = new Served();
  let front: Front;
  beforeAll(async () => {
    front = await served.front(localConfig());
  });
  afterAll(() => served.end());

  it('chats, streaming and not', async () => {
    const messages = [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: 'Hello?' },
    ] as const;
    const [right] = await reference([codec.encodeChat(messages)], 24, false);
    const text = textOf((right ?? []).filter((token) => token < 256));
    const asked = { model: 'kvt-tiny', messages: [...messages], max_completion_tokens: 24, temperature: 0 };
    const whole = await front.client.chat.completions.create(asked);
    expect(whole.choices[0]?.message).toMatchObject({ role: 'assistant', content: text });
    let streamed = '';
    for await (const { choices } of await front.client.chat.completions.create({ ...asked, stream: true }))
      streamed += choices[0]?.delta.content ?? '';
    expect(streamed).toBe(text);
  });

  it('stops at an end token, at which the server that samples it ends by itself', async () => {
    const prompt = PROMPTS[1] as string;
    const seeds = Array.from({ length: 12 }, (_, seed) => seed);
    const right = await referenceAnswers(
      ENGINE,
      seeds.map((seed) => ({
        promptTokens: codec.encode(prompt),
        maxTokens: 40,
        sampling: { temperature: 1, topP: 1, seed },
        ignoreEnd: false,
      })),
    );
    expect(right.filter((tokens) => (tokens.at(-1) ?? 0) >= 256).length).toBeGreaterThan(2);
    const count = async (outcome: string): Promise<number> =>
      front.metric(`kv_transceiver_requests_total{role="generation",outcome="${outcome}",worker="generation-0"`);
    const before = [await count('completed'), await count('cancelled')] as const;
    const answers = await Promise.all(
      seeds.map((seed) => front.client.completions.create({ model: 'kvt-tiny', max_tokens: 40, prompt, seed, ...IDS })),
    );
    expect(answers.map(({ choices }) => (choices[0] as WithIds).token_ids)).toEqual(right);
    expect([await count('completed'), await count('cancelled')]).toEqual([before[0] + seeds.length, before[1]]);
  });

  it('stops at text', async () => {
    const prompt = PROMPTS[1] as string;
    const [right = []] = await reference([codec.encode(prompt)], 30, true);
    const text = textOf(right);
    const stop = text.slice(10, 13);
    const asked = { model: 'kvt-tiny', prompt, max_tokens: 30, temperature: 0, stop, ignore_eos: true };
    const answer = await front.client.completions.create(asked);
    expect(answer.choices[0]).toMatchObject({ text: text.slice(0, text.indexOf(stop)), finish_reason: 'stop' });
  });

  it('learns what is wrong with a request', async () => {
    const ask = (more: object) => front.client.completions.create({ model: 'kvt-tiny', prompt: 'a', ...more });
    await expect(ask({ n: 2 })).rejects.toMatchObject({ status: 400, param: 'n' });
    await expect(ask({ model: 'other' })).rejects.toMatchObject({ status: 404, code: 'model_not_found' });
    await expect(ask({ max_tokens: 512 })).rejects.toMatchObject({ status: 400, code: 'context_length_exceeded' });
    expect((await front.client.models.list()).data.map(({ id }) => id)).toEqual(['kvt-tiny']);
  });

  it('sees the workers’ metrics beside the front’s', async () => {
    const lines = (await front.metrics()).split('\n');
    for (const pattern of [
      /^kvt_serve_worker_ready\{server="context-0",worker="front"\} 1$/,
      /^kv_transceiver_coordinator_servers\{role="context",phase="ready",worker="front"\} 1$/,
      /^kv_transceiver_step_seconds_count\{worker="context-0",worker_role="context"\} [1-9]/,
      /^kv_transceiver_step_seconds_count\{worker="generation-0",worker_role="generation"\} [1-9]/,
      /^kvt_worker_fronts\{worker="context-0",worker_role="context"\} 1$/,
      /^process_open_fds\{worker="front"\} \d/,
    ])
      expect(
        lines.some((line) => pattern.test(line)),
        String(pattern),
      ).toBe(true);
    expect(lines.filter((line) => line.startsWith('# TYPE process_open_fds'))).toHaveLength(1);
    // A name given twice makes a scrape fail as a whole.
    for (const [, labels = ''] of lines.map((line) => /\{(.*)\}/.exec(line) ?? [])) {
      const names = [...labels.matchAll(/(?:^|,)(\w+)="/g)].map(([, name]) => name);
      expect(new Set(names).size, labels).toBe(names.length);
    }
  });
});
