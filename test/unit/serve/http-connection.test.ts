import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { afterEach, describe, expect, it } from 'vitest';
import { type HttpWorldOptions, httpWorld, until } from './http-world.js';

let world: Awaited<ReturnType<typeof httpWorld>>;
afterEach(() => world.close());

async function start(options: HttpWorldOptions = {}) {
  world = await httpWorld(options);
  return world;
}

describe('a connection after an answer to a request that was not read', () => {
  const HEAD = 'host: x\r\ncontent-type: application/json\r\n';
  const NEXT = 'GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n';
  const statuses = (text: string): string[] => [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map((match) => match[1] ?? '');

  const REFUSED: [string, string, string, string][] = [
    ['a path that is not there', 'POST /nothing', HEAD, '404'],
    ['a method that is not there', 'POST /health', HEAD, '405'],
    ['another type', 'POST /v1/completions', 'host: x\r\ncontent-type: text/plain\r\n', '415'],
    ['a body that nobody reads', 'GET /health', HEAD, '200'],
    ['a host given twice', 'POST /health', `host: y\r\n${HEAD}`, '400'],
    ['a wrong body', 'POST /v1/completions', HEAD, '400'],
  ];

  it.each(REFUSED)('%s: is kept when the body came with its head, and says so', async (_, line, head, status) => {
    const { raw } = await start();
    const text = await raw(`${line} HTTP/1.1\r\n${head}content-length: 2\r\n\r\n{]${NEXT}`).answer();
    expect(statuses(text)).toEqual([status, '200']);
    expect(text.match(/^connection: .*$/gim)).toEqual(['Connection: keep-alive', 'Connection: close']);
  });

  it.each(REFUSED)('%s: is kept when it came whole in chunks', async (_, line, head, status) => {
    const { raw } = await start();
    const text = await raw(
      `${line} HTTP/1.1\r\n${head}transfer-encoding: chunked\r\n\r\n2\r\n{]\r\n0\r\n\r\n${NEXT}`,
    ).answer();
    expect(statuses(text)).toEqual([status, '200']);
  });

  // A body that is being read is refused when it is wrong, and one of that length is too large here.
  it.each(REFUSED.slice(0, 5))('%s: is kept when a short rest comes later', async (_, line, head, status) => {
    const { raw } = await start();
    const client = raw(`${line} HTTP/1.1\r\n${head}content-length: 65000\r\n\r\n]`);
    client.socket.once('data', () => client.socket.write(`${' '.repeat(64_999)}${NEXT}`));
    const text = await client.answer();
    expect(statuses(text)).toEqual([status, '200']);
    expect(text.match(/^connection: .*$/gim)).toEqual(['Connection: keep-alive', 'Connection: close']);
  });

  it.each([
    ['a long rest', 'content-length: 70000\r\n\r\n{'],
    ['a rest of nobody knows what length', 'transfer-encoding: chunked\r\n\r\n1\r\n{\r\n'],
  ])('%s: is ended, and says so', async (_, rest) => {
    const { raw } = await start();
    for (const [, line, head, status] of REFUSED.slice(0, 5)) {
      const text = await raw(`${line} HTTP/1.1\r\n${head}${rest}`).answer();
      expect(statuses(text)).toEqual([status]);
      expect(text.match(/^connection: .*$/gim)).toEqual(['connection: close']);
    }
  });

  it('full queue: a client that is told to come back does so over the same connection', async () => {
    const { complete, gate, port } = await start({ maxLive: 1, maxQueued: 0 });
    void complete().catch(() => {});
    await until(
      () => gate.live === 1,
      () => 'no request came through',
    );
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const body = JSON.stringify({ model: 'kvt-tiny', prompt: 'x', max_tokens: 1 });
    const options = { port, path: '/v1/completions', method: 'POST', agent };
    const headers = { 'content-type': 'application/json', 'content-length': body.length };
    const sockets = new Set<unknown>();
    for (let round = 0; round < 20; round += 1) {
      const asked = request({ host: '127.0.0.1', ...options, headers });
      // Two writes: the answer may be there before the body is.
      asked.flushHeaders();
      asked.end(body);
      const [answer] = (await once(asked, 'response')) as [IncomingMessage];
      expect([answer.statusCode, answer.headers.connection]).toEqual([429, 'keep-alive']);
      sockets.add(answer.socket);
      answer.resume();
      await once(answer, 'end');
    }
    expect(sockets.size).toBe(1);
    agent.destroy();
  });

  it('a rest that comes slowly: the next request is answered all the same', async () => {
    const { raw } = await start();
    const client = raw(`POST /nothing HTTP/1.1\r\n${HEAD}content-length: 21\r\n\r\n{`);
    // Longer than the library beneath would wait.
    for (let byte = 0; byte < 20; byte += 1) {
      await new Promise((resolve) => setTimeout(resolve, 50));
      client.socket.write(' ');
    }
    client.socket.write(NEXT);
    expect(statuses(await client.answer())).toEqual(['404', '200']);
  });

  it('a rest that does not come: the connection is ended without a second answer', async () => {
    const { raw, counted } = await start({ requestTimeoutMs: 1500 });
    const client = raw(`POST /nothing HTTP/1.1\r\n${HEAD}content-length: 100\r\n\r\n{`);
    const trickle = setInterval(() => client.socket.write(' '), 50);
    const text = await client.answer();
    clearInterval(trickle);
    expect(statuses(text)).toEqual(['404']);
    expect(await counted()).toEqual({ 'other 404': 1 });
  });

  it('garbage behind a request that waits for its answer is not answered in its place', async () => {
    const { raw } = await start();
    const body = JSON.stringify({ model: 'kvt-tiny', prompt: 'ab', max_tokens: 8 });
    const client = raw(
      `POST /v1/completions HTTP/1.1\r\n${HEAD}content-length: ${body.length}\r\n\r\n${body}\x16\x03\r\n\r\n`,
    );
    expect(await client.answer()).toBe('');
  });
});

describe('what is counted', () => {
  it('every answer once, by a bounded number of names; what the application never saw has its line too', async () => {
    const { raw, counted, lines, post, url } = await start({ requestTimeoutMs: 1000 });
    const close = 'host: x\r\nconnection: close\r\n\r\n';
    const asked: [string, string][] = [
      [`GET /nothing-1 HTTP/1.1\r\n${close}`, 'other 404'],
      [`GET /nothing-2 HTTP/1.1\r\n${close}`, 'other 404'],
      [`GET /v1/models/:model{.+}x HTTP/1.1\r\n${close}`, '/v1/models/{model} 404'],
      [`GET /v1/models/kvt-tiny HTTP/1.1\r\n${close}`, '/v1/models/{model} 200'],
      [`DELETE /v1/models/kvt-tiny HTTP/1.1\r\n${close}`, '/v1/models/{model} 405'],
      [`GET /v1/models?x=1 HTTP/1.1\r\n${close}`, '/v1/models 200'],
      [`GET /health HTTP/1.1\r\nx: ${'x'.repeat(20_000)}\r\n${close}`, 'none 431'],
      ['\x16\x03\x01\x02\x00\x01\x00\r\n\r\n', 'none 400'],
      ['GET /health HTTP/1.1\r\nconnection: close\r\n\r\n', 'none 400'],
      [`GET /health HTTP/1.1\r\nhost: y\r\n${close}`, 'none 400'],
      [`OPTIONS * HTTP/1.1\r\n${close}`, 'none 400'],
      [`CONNECT a:1 HTTP/1.1\r\n${close}`, 'none 405'],
      [`GET /health HTTP/1.1\r\nexpect: magic\r\n${close}`, 'none 417'],
      ['GET /health HTTP/1.1\r\nhost: x\r\n', 'none 408'],
      [
        'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{',
        '/v1/completions 408',
      ],
      [
        'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
        'none 400',
      ],
    ];
    const expected: Record<string, number> = {};
    for (const [text, name] of asked) {
      expected[name] = (expected[name] ?? 0) + 1;
      const answer = await raw(text).answer();
      expect(answer.slice(0, 12), text.slice(0, 60)).toBe(`HTTP/1.1 ${name.slice(-3)}`);
    }
    expect(await counted()).toEqual(expected);
    const refused = lines.filter((line) => (line as { msg: string }).msg === 'http request refused');
    const ofParser = refused.map((line) => line as { route: string; status: number; http: string | null });
    expect(ofParser.filter(({ route }) => route === 'none').map(({ status }) => status)).toEqual([
      431, 400, 400, 400, 400, 405, 417, 408, 408, 400,
    ]);
    expect(ofParser.filter(({ status }) => status === 404)).toHaveLength(3);
    await post('/v1/chat/completions', '{');
    await fetch(`${url}/metrics`);
    expect(await counted()).toEqual({ ...expected, '/v1/chat/completions 400': 1, '/metrics 200': 1 });
  });
});

describe('what a request says of itself', () => {
  it('two hosts are refused, whoever took which', async () => {
    const { raw } = await start();
    for (const version of ['1.1', '1.0']) {
      const text = await raw(`GET /health HTTP/${version}\r\nhost: a\r\nHost: b\r\nconnection: close\r\n\r\n`).answer();
      expect(text).toMatch(/^HTTP\/1\.1 400 [\s\S]*the host header is given twice/);
    }
  });

  it.each([
    ['application/json; charset=utf-8', 400],
    ['application/json;charset="UTF-8"', 400],
    ['application/json ; CHARSET = utf8 ; x=1', 400],
    ['application/json; x=1', 400],
    ['application/json; charset=iso-8859-1', 415],
    ['application/json; charset="utf-16"', 415],
    ['application/json; charset=utf-8; charset=latin1', 415],
    ['application/json; charset=utf-88', 415],
    ['application/json; charset=', 415],
  ])('%s: %i', async (type, status) => {
    const { post } = await start();
    const response = await post('/v1/completions', '{', { headers: { 'content-type': type } });
    expect(response.status).toBe(status);
    const { error } = (await response.json()) as { error: { message: string } };
    expect(error.message).toMatch(
      status === 415 ? /^the charset of content-type must be utf-8, got "/ : /^the body is not JSON/,
    );
  });
});
