import { afterEach, describe, expect, it } from 'vitest';
import { InternalError, PeerLostError, ResourceError, TransferTimeoutError } from '../../../src/errors.js';
import { MAX_PIPELINED } from '../../../src/serve/front/connection-watch.js';
import { until as eventually } from '../../support/deadline.js';
import { type HttpWorldOptions, httpWorld, until } from './http-world.js';

let world: Awaited<ReturnType<typeof httpWorld>>;
afterEach(() => world.close());

async function start(options: HttpWorldOptions = {}) {
  world = await httpWorld(options);
  return world;
}

/** The newest request's tokens and end at both servers. */
async function answerWith(text: string, cachedTokens = 0, count = 1): Promise<void> {
  const { context, generation } = world;
  await until(
    () => generation.submitted.length >= count,
    () => world.log.join(),
  );
  const { events, end } = generation.last;
  const tokens = [...Buffer.from(text)];
  for (const [index, token] of tokens.entries()) events.onToken?.(token, index);
  context.last.end({ usage: { promptTokens: 2, cachedTokens } });
  await Promise.resolve();
  end({ outputTokens: tokens });
}

const eventsOf = (body: string): unknown[] =>
  body
    .split('\n\n')
    .filter((event) => event !== '')
    .map((event) => {
      expect(event.startsWith('data: ')).toBe(true);
      const data = event.slice(6);
      return data === '[DONE]' ? data : JSON.parse(data);
    });

describe('answers', () => {
  it('whole', async () => {
    const { complete } = await start();
    const response = complete({ return_token_ids: true });
    await answerWith('hi', 1);
    const answered = await response;
    expect(answered.status).toBe(200);
    const body = (await answered.json()) as { id: string; created: number };
    expect(answered.headers.get('x-request-id')).toBe(body.id);
    expect(body.created).toBeGreaterThan(1e9);
    expect(body).toMatchObject({
      object: 'text_completion',
      model: 'kvt-tiny',
      choices: [{ index: 0, text: 'hi', logprobs: null, finish_reason: 'length', token_ids: [104, 105] }],
      usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4, prompt_tokens_details: { cached_tokens: 1 } },
    });
  });

  it('of a chat', async () => {
    const { post, generation } = await start();
    const response = post('/v1/chat/completions', {
      model: 'kvt-tiny',
      messages: [{ role: 'user', content: 'a' }],
      temperature: 0,
    });
    await answerWith('yes');
    expect(await (await response).json()).toMatchObject({
      object: 'chat.completion',
      choices: [{ index: 0, message: { role: 'assistant', content: 'yes', refusal: null }, finish_reason: 'length' }],
      usage: { prompt_tokens: 4, completion_tokens: 3, total_tokens: 7 },
    });
    expect(generation.last.request).toMatchObject({ maxTokens: 60, sampling: { temperature: 0, topP: 1 } });
    expect([...generation.last.request.promptTokens]).toEqual([258, 97, 256, 259]);
  });

  it('as a stream of events', async () => {
    const { complete, generation, context } = await start();
    const response = complete({ stream: true, stream_options: { include_usage: true } });
    await until(
      () => generation.submitted.length > 0,
      () => world.log.join(),
    );
    generation.last.events.onToken?.(104, 0);
    const answered = await response;
    expect(answered.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
    generation.last.events.onToken?.(105, 1);
    context.last.end({});
    await Promise.resolve();
    generation.last.end({ outputTokens: [104, 105] });
    const events = eventsOf(await answered.text()) as { choices: { text: string }[]; usage: unknown }[];
    expect(events.at(-1)).toBe('[DONE]');
    expect(events.at(-2)).toMatchObject({ choices: [], usage: { completion_tokens: 2 } });
    expect(events.at(-3)).toMatchObject({ choices: [{ text: '', finish_reason: 'length' }], usage: null });
    expect(
      events
        .slice(0, -3)
        .map(({ choices }) => choices[0]?.text)
        .join(''),
    ).toBe('hi');
  });

  it('as a stream of a chat: the role first', async () => {
    const { post } = await start();
    const body = { model: 'kvt-tiny', messages: [{ role: 'user', content: 'a' }], stream: true };
    const response = post('/v1/chat/completions', body);
    await answerWith('x');
    const events = eventsOf(await (await response).text());
    expect(events).toMatchObject([
      {
        object: 'chat.completion.chunk',
        choices: [{ delta: { role: 'assistant', content: '' }, finish_reason: null }],
      },
      { choices: [{ delta: { content: 'x' }, finish_reason: null }] },
      { choices: [{ delta: {}, finish_reason: 'length' }] },
      '[DONE]',
    ]);
    expect(events[0]).not.toHaveProperty('usage');
  });

  it('ends at a stop string over several tokens, and stops the servers', async () => {
    const { complete, generation, context, log } = await start();
    const response = complete({ stop: ['lo w'] });
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    for (const [index, token] of [...Buffer.from('hello wor')].entries())
      generation.last.events.onToken?.(token, index);
    expect(log.slice(2)).toEqual(['generation cancel', 'context cancel']);
    context.last.end({ outcome: 'cancelled' });
    generation.last.end({ outcome: 'cancelled' });
    expect(await (await response).json()).toMatchObject({
      choices: [{ text: 'hel', finish_reason: 'stop' }],
      usage: { completion_tokens: 7 },
    });
  });

  it('ends at a token that ends answers, unless it was told not to', async () => {
    const { complete, generation, context, log } = await start();
    for (const ignore of [false, true]) {
      const response = complete({ ignore_eos: ignore });
      await until(
        () => generation.submitted.length > Number(ignore),
        () => log.join(),
      );
      const { events, end, request } = generation.last;
      expect(request.stopTokens).toEqual(ignore ? [] : [256, 257, 258, 259, 260]);
      const tokens = ignore ? [97, 256, 98] : [97, 256];
      for (const [index, token] of tokens.entries()) events.onToken?.(token, index);
      context.last.end({});
      await Promise.resolve();
      end({ outcome: 'completed', outputTokens: tokens });
      expect(await (await response).json()).toMatchObject({
        choices: [{ text: ignore ? 'ab' : 'a', finish_reason: ignore ? 'length' : 'stop' }],
        usage: { completion_tokens: ignore ? 3 : 2 },
      });
    }
    expect(log.filter((line) => line.endsWith('cancel'))).toEqual([]);
  });

  it('cancels at a server that goes on after the end', async () => {
    const { complete, generation, context, log } = await start();
    const response = complete();
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    for (const [index, token] of [97, 256, 98].entries()) generation.last.events.onToken?.(token, index);
    expect(log.slice(2)).toEqual(['generation cancel', 'context cancel']);
    context.last.end({ outcome: 'cancelled' });
    generation.last.end({ outcome: 'cancelled', outputTokens: [97, 256, 98] });
    expect(await (await response).json()).toMatchObject({
      choices: [{ text: 'a', finish_reason: 'stop' }],
      usage: { completion_tokens: 2 },
    });
  });
});

describe('a client that leaves', () => {
  it.each([
    ['before the first token', false],
    ['in the middle of a stream', true],
  ])('%s: both servers hear of it', async (_, streaming) => {
    const { complete, generation, log, gate, context } = await start();
    const leaving = new AbortController();
    const response = complete({ stream: streaming }, { signal: leaving.signal });
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    if (streaming) {
      generation.last.events.onToken?.(97, 0);
      await response;
    }
    leaving.abort();
    if (!streaming) await expect(response).rejects.toThrow();
    await until(
      () => log.length === 4,
      () => log.join(),
    );
    expect(log.slice(2)).toEqual(['generation cancel', 'context cancel']);
    expect(gate.live).toBe(1);
    context.last.end({ outcome: 'cancelled' });
    generation.last.end({ outcome: 'cancelled' });
    await gate.idle();
    expect(gate.live).toBe(0);
  });

  it('while it waits: its place in the line is free', async () => {
    const { complete, gate, log } = await start({ maxLive: 1, maxQueued: 1 });
    const first = complete();
    await until(
      () => gate.live === 1,
      () => log.join(),
    );
    const leaving = new AbortController();
    const second = complete({}, { signal: leaving.signal });
    await until(
      () => gate.queued === 1,
      () => `${gate.queued} wait`,
    );
    leaving.abort();
    await expect(second).rejects.toThrow();
    await until(
      () => gate.queued === 0,
      () => `${gate.queued} wait`,
    );
    await answerWith('a');
    expect((await first).status).toBe(200);
    expect(log).toHaveLength(2);
  });
});

const asked = (body: string): string =>
  `POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;

describe('a connection that breaks', () => {
  it.each([false, true])(
    'with several requests behind one another (streams: %s): all are cancelled',
    async (stream) => {
      const { raw, log, gate, context, generation } = await start();
      const one = asked(JSON.stringify({ model: 'kvt-tiny', prompt: 'ab', max_tokens: 8, stream }));
      const client = raw(one.repeat(3));
      await until(
        () => generation.submitted.length === 3,
        () => log.join(),
      );
      client.socket.destroy();
      await until(
        () => log.filter((line) => line === 'generation cancel').length === 3,
        () => log.join(),
      );
      expect(log.filter((line) => line === 'context cancel')).toHaveLength(3);
      for (const server of [context, generation]) for (const { end } of server.submitted) end({ outcome: 'cancelled' });
      await gate.idle();
    },
  );

  it('after too many requests behind one another: none of the rest is looked at, and others are served', async () => {
    const { raw, log, url, gate, context, generation } = await start({ maxLive: 64 });
    const one = asked(JSON.stringify({ model: 'kvt-tiny', prompt: 'ab', max_tokens: 8 }));
    expect(await raw(one.repeat(200)).answer()).toBe('');
    await until(
      () => gate.live === generation.submitted.length,
      () => log.join(),
    );
    expect(generation.submitted.length).toBeLessThanOrEqual(MAX_PIPELINED);
    for (const server of [context, generation]) for (const { end } of server.submitted) end({ outcome: 'cancelled' });
    await gate.idle();
    expect((await fetch(`${url}/health`)).status).toBe(200);
  });

  it('in the middle of a body: nobody is told of a bug', async () => {
    const { raw, url, errors, log } = await start();
    const client = raw(asked(' '.repeat(100)).slice(0, -50));
    await new Promise((resolve) => client.socket.once('connect', resolve));
    // The server has the first half when it answers the next one.
    expect((await fetch(`${url}/health`)).status).toBe(200);
    client.socket.destroy();
    const metrics = async (): Promise<string> => (await fetch(`${url}/metrics`)).text();
    let text = '';
    await eventually(
      async () => {
        text = await metrics();
        return text.includes('route="/v1/completions"');
      },
      () => text,
    );
    expect(text).toContain('kvt_serve_http_requests_total{route="/v1/completions",status="499"} 1');
    expect([errors, log]).toEqual([[], []]);
  });
});

describe('a client that takes nothing', () => {
  it('is cut off, and both servers hear of it', async () => {
    const { raw, generation, log, gate, context } = await start({ maxModelTokens: 65_536, stallLimitMs: 200 });
    const body = JSON.stringify({ model: 'kvt-tiny', prompt: 'a', max_tokens: 65_000, stream: true });
    const head = `POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n`;
    const client = raw(head + body);
    client.socket.pause();
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    // Until the kernel's buffers are full; from then on the text gathers in one string.
    let index = 0;
    await until(
      () => {
        if (index < 65_000) generation.last.events.onToken?.(0, index++);
        return log.length === 4;
      },
      () => `${index} tokens, ${log.join()}`,
    );
    expect(index).toBeGreaterThan(100);
    expect(log.slice(2)).toEqual(['generation cancel', 'context cancel']);
    generation.last.end({ outcome: 'cancelled' });
    context.last.end({ outcome: 'cancelled' });
    await gate.idle();
    client.socket.resume();
    expect(await client.answer()).not.toContain('[DONE]');
  });
});

describe('bounds', () => {
  it('runs so many, lets so many wait in order, and tells the rest to come back', async () => {
    const { complete, gate, log } = await start({ maxLive: 1, maxQueued: 1 });
    const first = complete();
    await until(
      () => gate.live === 1,
      () => log.join(),
    );
    const second = complete();
    await until(
      () => gate.queued === 1,
      () => `${gate.queued} wait`,
    );
    const third = await complete();
    expect([third.status, third.headers.get('retry-after')]).toEqual([429, '1']);
    expect(await third.json()).toMatchObject({ error: { type: 'rate_limit_error', code: 'queue_full' } });
    await answerWith('a');
    expect((await first).status).toBe(200);
    await answerWith('b', 0, 2);
    expect(await (await second).json()).toMatchObject({ choices: [{ text: 'b' }] });
  });

  it('tells who waited too long', async () => {
    const { complete, gate, log } = await start({ maxLive: 1, maxQueued: 1, queueTimeoutMs: 20 });
    const first = complete();
    await until(
      () => gate.live === 1,
      () => log.join(),
    );
    const second = await complete();
    expect(second.status).toBe(503);
    expect(await second.json()).toMatchObject({ error: { code: 'queue_timeout' } });
    await answerWith('a');
    await first;
  });

  it('turns everybody away when it closes', async () => {
    const { complete, gate, url } = await start();
    await gate.close();
    const refused = await complete();
    expect([refused.status, refused.headers.get('connection')]).toEqual([503, 'close']);
    expect(await refused.json()).toMatchObject({ error: { code: 'shutting_down' } });
    const health = await fetch(`${url}/health`);
    expect([health.status, await health.json()]).toEqual([503, { status: 'draining', context: [], generation: [] }]);
  });

  it.each<[string, number, string, RequestInit]>([
    ['no JSON', 400, '{"model": ', {}],
    ['no UTF-8', 400, '', { body: Uint8Array.of(0x7b, 0xff, 0x7d) }],
    ['text', 415, '{}', { headers: { 'content-type': 'text/plain' } }],
    ['compressed', 415, '{}', { headers: { 'content-type': 'application/json', 'content-encoding': 'gzip' } }],
    ['too large', 413, JSON.stringify({ prompt: 'x'.repeat(2000) }), {}],
  ])('a body that is %s: %i', async (_, status, body, init) => {
    const { post, log } = await start();
    const response = await post('/v1/completions', body, init);
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({
      error: { type: 'invalid_request_error', message: expect.any(String) },
    });
    expect(log).toEqual([]);
  });

  it('a body that grows without a length: 413', async () => {
    const { raw } = await start();
    const head =
      'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n';
    const chunk = `400\r\n${'x'.repeat(1024)}\r\n`;
    const client = raw(`${head}${chunk}${chunk}${chunk}0\r\n\r\n`);
    await until(
      () => client.socket.bytesRead > 0,
      () => 'no answer',
    );
    client.socket.end();
    expect(await client.answer()).toMatch(/^HTTP\/1\.1 413 /);
  });

  it('floods of headers: 431', async () => {
    const { raw } = await start();
    const client = raw(`GET /health HTTP/1.1\r\nhost: x\r\n${`x-flood: ${'y'.repeat(1000)}\r\n`.repeat(40)}\r\n`);
    const answer = await client.answer();
    expect(answer).toMatch(/^HTTP\/1\.1 431 /);
    expect(JSON.parse(answer.slice(answer.indexOf('{')))).toMatchObject({
      error: { type: 'invalid_request_error', message: expect.stringContaining('16 KiB') },
    });
  });

  it('what is no HTTP: 400 in the shape of every error', async () => {
    const { raw } = await start();
    const answer = await raw('\u0016\u0003\u0001 hello\r\n\r\n').answer();
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(JSON.parse(answer.slice(answer.indexOf('{')))).toMatchObject({ error: { type: 'invalid_request_error' } });
  });

  it('HTTP 1.0 without a host', async () => {
    const { raw } = await start();
    expect(await raw('GET /health HTTP/1.0\r\n\r\n').answer()).toMatch(/^HTTP\/1\.1 200 /);
  });

  it('clients that do not finish their request: 408, and others are not held up', async () => {
    const { raw, url } = await start({ requestTimeoutMs: 300 });
    const slowHead = raw('GET /health HTTP/1.1\r\nhost:');
    const slowBody = raw(
      'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{',
    );
    expect((await fetch(`${url}/health`)).status).toBe(200);
    expect(await slowHead.answer()).toMatch(/^HTTP\/1\.1 408 /);
    expect(await slowBody.answer()).toMatch(/^HTTP\/1\.1 408 |^$/);
  });

  it.each([
    ['GET', '/v1/completions', 405],
    ['POST', '/v1/models', 405],
    ['GET', '/', 404],
    ['GET', '/v1/models/other', 404],
    ['DELETE', '/v1/chat/completions', 405],
  ])('%s %s: %i', async (method, path, status) => {
    const { url } = await start();
    const response = await fetch(`${url}${path}`, { method });
    expect(response.status).toBe(status);
    expect(await response.json()).toMatchObject({ error: { message: expect.any(String) } });
    if (status === 405) expect(response.headers.get('allow')).toMatch(/GET|POST/);
  });
});

describe('errors', () => {
  const SECRET = 'a detail of the inside';

  it.each([
    [new PeerLostError('context-0 was lost', { peer: 'context-0' }), 502, /a server of this request failed/],
    [new ResourceError('no generation server is ready'), 503, /no generation server is ready/],
    [new TransferTimeoutError('took too long'), 504, /took too long/],
    [new InternalError(SECRET), 500, /internal error; the log of the server has more under cmpl-/],
  ])('%s: %i before the first token', async (error, status, message) => {
    const { complete, generation, context, log, errors } = await start();
    const response = complete({ stream: true });
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    generation.last.end({ outcome: 'failed', error });
    context.last.end({ outcome: 'cancelled' });
    const answered = await response;
    expect(answered.status).toBe(status);
    const text = await answered.text();
    expect((JSON.parse(text) as { error: { message: string } }).error.message).toMatch(message);
    expect(text).not.toMatch(/ at .*\.[jt]s|a detail of the inside/);
    expect(errors.join().includes(SECRET)).toBe(status === 500);
  });

  it('is tried again on another try before the first token', async () => {
    const { complete, generation, context, log } = await start({ maxRetries: 1 });
    const response = complete();
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    generation.last.end({ outcome: 'failed', error: new PeerLostError('lost', { peer: 'generation' }) });
    context.last.end({ outcome: 'cancelled' });
    await answerWith('ok', 0, 2);
    expect(await (await response).json()).toMatchObject({ choices: [{ text: 'ok' }] });
  });

  it('comes as an event once the stream has begun, and then nothing', async () => {
    const { complete, generation, context, log } = await start();
    const response = complete({ stream: true });
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    generation.last.events.onToken?.(97, 0);
    const answered = await response;
    expect(answered.status).toBe(200);
    generation.last.end({
      outcome: 'failed',
      error: new PeerLostError('generation-0 was lost', { peer: 'generation-0' }),
    });
    context.last.end({ outcome: 'cancelled' });
    const events = eventsOf(await answered.text());
    expect(events).toMatchObject([
      { choices: [{ text: 'a' }] },
      { error: { message: 'a server of this request failed: generation-0 was lost', code: 'ERR_KVT_PEER_LOST' } },
    ]);
  });
});

describe('the trace of the caller', () => {
  const VALID = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  it.each<[string, string, string, number]>([
    ['goes to both servers', VALID, VALID, 0],
    ['of a later version goes as version 00', `${VALID.replace('00-', '01-')}-more`, VALID, 0],
    ['without an id goes no further', '00-00000000000000000000000000000000-b7ad6b7169203331-01', '', 1],
    ['that is text goes no further', 'x'.repeat(300), '', 1],
  ])('%s', async (_, given, expected, dropped) => {
    const { complete, generation, context, log, url } = await start();
    const response = complete({}, { headers: { 'content-type': 'application/json', traceparent: given } });
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    for (const { request } of [context.last, generation.last]) expect(request.params.traceparent).toBe(expected);
    context.last.end({});
    generation.last.end({});
    await (await response).text();
    expect(await (await fetch(`${url}/metrics`)).text()).toContain(`kvt_serve_bad_traceparents_total ${dropped}\n`);
  });
});

describe('log lines', () => {
  it('tie a request to its id at the servers, and say what was refused; none has a word of it', async () => {
    const { complete, generation, context, log, lines, gate } = await start();
    const response = complete({ prompt: 'secret words' });
    await until(
      () => generation.submitted.length > 0,
      () => log.join(),
    );
    generation.last.events.onToken?.(97, 0);
    context.last.end({});
    generation.last.end({ outputTokens: [97] });
    const http = (await response).headers.get('x-request-id');
    await gate.idle();
    const refused = await complete({ prompt: 'secret words', model: 'secret' });
    const rid = generation.last.request.params.disaggRequestId?.toString();
    expect(lines).toEqual([
      {
        level: 'info',
        msg: 'http request ended',
        http,
        rid,
        route: '/v1/completions',
        stream: false,
        ms: expect.any(Number),
      },
      {
        level: 'info',
        msg: 'http request refused',
        http: refused.headers.get('x-request-id'),
        route: '/v1/completions',
        status: 404,
        code: 'model_not_found',
      },
    ]);
    expect(JSON.stringify(lines)).not.toContain('secret');
  });
});

describe('models and metrics', () => {
  it('lists the one model', async () => {
    const { url } = await start();
    const model = { id: 'kvt-tiny', object: 'model', owned_by: 'kv-transceiver' };
    expect(await (await fetch(`${url}/v1/models`)).json()).toMatchObject({ object: 'list', data: [model] });
    expect(await (await fetch(`${url}/v1/models/kvt-tiny`)).json()).toMatchObject(model);
  });

  it('counts what was asked and answered', async () => {
    const { complete, url } = await start();
    const response = complete();
    await answerWith('hey', 1);
    await response;
    await complete({ n: 2 });
    const text = await (await fetch(`${url}/metrics`)).text();
    for (const line of [
      'kvt_serve_http_requests_total{route="/v1/completions",status="200"} 1',
      'kvt_serve_http_requests_total{route="/v1/completions",status="400"} 1',
      'kvt_serve_tokens_total{kind="prompt"} 2',
      'kvt_serve_tokens_total{kind="cached"} 1',
      'kvt_serve_tokens_total{kind="completion"} 3',
      'kvt_serve_retries_total 0',
      'kvt_serve_requests_live 0',
    ])
      expect(text.split('\n')).toContain(line);
  });
});
