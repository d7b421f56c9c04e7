import { afterEach, describe, expect, it } from 'vitest';
import { type HttpWorldOptions, httpWorld, until } from './http-world.js';

let world: Awaited<ReturnType<typeof httpWorld>>;
afterEach(() => world.close());

async function start(options: HttpWorldOptions = {}) {
  world = await httpWorld(options);
  return world;
}

describe('what is refused before it is a request of the API', () => {
  it.each([
    ['HTTP 1.1 without a host', 'GET /health HTTP/1.1\r\nconnection: close\r\n\r\n', 400, /the host header is missing/],
    [
      'a host that is none',
      'GET /health HTTP/1.1\r\nhost: a b\r\nconnection: close\r\n\r\n',
      400,
      /host header .* cannot be read/,
    ],
    [
      'a path that is none',
      'OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n',
      400,
      /the path or the host header/,
    ],
    [
      'an expectation that nobody knows',
      'GET /health HTTP/1.1\r\nhost: x\r\nexpect: magic\r\n\r\n',
      417,
      /only 100-continue/,
    ],
    ['a tunnel', 'CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n', 405, /CONNECT is not possible here/],
    ['TLS', '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03', 400, /plain HTTP 1\.1 \(TLS belongs to a proxy/],
  ])('%s: an error in the shape of all', async (_, text, status, message) => {
    const { raw } = await start();
    const answer = await raw(text).answer();
    expect(answer.split('\r\n')[0]).toContain(`HTTP/1.1 ${status} `);
    const body = answer.slice(answer.indexOf('{'), answer.lastIndexOf('}') + 1);
    expect((JSON.parse(body) as { error: { message: string } }).error.message).toMatch(message);
  });

  it('a body after 100 Continue', async () => {
    const { raw } = await start();
    const body = JSON.stringify({ model: 'other', prompt: 'a' });
    const client = raw(
      `POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: ${body.length}\r\nconnection: close\r\n\r\n`,
    );
    client.socket.once('data', () => client.socket.write(body));
    expect(await client.answer()).toMatch(/^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 404 /);
  });

  it.each([
    ['lists in lists', `{"prompt": ${'['.repeat(1e6)}${']'.repeat(1e6)}}`, 'the body is nested more than 64 deep'],
    ['maps in maps', `{"a":`.repeat(1e5), 'the body is nested more than 64 deep'],
    ['entries', `{"prompt": [${'1,'.repeat(1e6)}1]}`, 'the body has more than 32832 entries in its lists and maps'],
    ['lists', `{"prompt": [${'[],'.repeat(5e5)}1]}`, 'the body has more than 32832 entries in its lists and maps'],
    [
      'keys',
      `{${Array.from({ length: 1e5 }, (_, key) => `"${key}":1`).join()}}`,
      'a map of the body has more than 256 keys',
    ],
  ])('a body of %s is refused before it is built', async (_, body, message) => {
    const { post, bodies } = await start({ maxBodyBytes: 4e6 });
    const response = await post('/v1/completions', body);
    expect(response.status).toBe(400);
    expect(((await response.json()) as { error: { message: string } }).error.message).toBe(message);
    expect(bodies.heldBytes).toBe(0);
  });

  it('brackets in a text are text', async () => {
    const { complete } = await start({ maxBodyBytes: 4e6 });
    const response = await complete({ prompt: `${'[{,:'.repeat(1e5)}\\"[[` });
    expect(((await response.json()) as { error: { code: string } }).error.code).toBe('context_length_exceeded');
  });

  it('bodies that are held back have a bound over all connections', async () => {
    const { raw, complete, bodies, log } = await start({ maxBodyBytes: 1000, bodiesBytes: 2500 });
    const head =
      'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n';
    const held = [1, 2].map(() => raw(`${head}${' '.repeat(999)}`));
    await until(
      () => bodies.heldBytes === 1998,
      () => `${bodies.heldBytes} bytes are held`,
    );
    const third = await raw(`${head}${' '.repeat(999)}`).answer();
    expect(third).toMatch(/^HTTP\/1\.1 429 /);
    expect(third).toMatch(/\r\nretry-after: 1\r\n/i);
    expect(third).toMatch(/"code":"bodies_full"/);
    for (const { socket } of held) socket.destroy();
    await until(
      () => bodies.heldBytes === 0,
      () => `${bodies.heldBytes} bytes are held`,
    );
    void complete().catch(() => {});
    await until(
      () => log.length > 0,
      () => 'no request came through',
    );
  });

  it('a body in chunks of one byte is refused, and the connection ended', async () => {
    const { raw, bodies, log } = await start({ maxBodyBytes: 100_000 });
    const head =
      'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n';
    const answer = await raw(`${head}${'1\r\n \r\n'.repeat(50_000)}`).answer();
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(answer).toMatch(/\r\nconnection: close\r\n/i);
    expect(answer).toMatch(/the body came in 4229 pieces of 1 bytes on average; .*"code":"body_fragmented"/);
    expect(bodies.heldBytes).toBe(0);
    // As many as a list of ids may be written in are a body like any other.
    const ids = [...`{"model": "kvt-tiny", "prompt": [${'1, '.repeat(30)}1]}`];
    const body = `${ids.map((byte) => `1\r\n${byte}\r\n`).join('')}${'1\r\n \r\n'.repeat(3900)}0\r\n\r\n`;
    const client = raw(head + body);
    await until(
      () => log.length > 0,
      () => 'no request came through',
    );
    client.socket.destroy();
  });

  it.each([
    ['a body that is nested too deep', 'POST /v1/completions', 400],
    ['a method that is not there', 'DELETE /v1/models', 405],
    ['a path that is not there', 'POST /v2/completions', 404],
  ])('%s while its body still comes: the status, and the connection ended', async (_, line, status) => {
    const { raw } = await start({ maxBodyBytes: 1_000_000 });
    const head = 'host: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n';
    const client = raw(`${line} HTTP/1.1\r\n${head}${(0x1000).toString(16)}\r\n${'['.repeat(0x1000)}\r\n`);
    const answer = await client.answer();
    expect(answer).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
  });

  it('with a full queue the body is not waited for', async () => {
    const { raw, complete, gate, bodies } = await start({ maxLive: 1, maxQueued: 0 });
    void complete().catch(() => {});
    await until(
      () => gate.live === 1,
      () => 'no request came through',
    );
    const client = raw(
      'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{',
    );
    await new Promise((resolve) => client.socket.once('data', resolve));
    client.socket.destroy();
    const answer = await client.answer();
    expect(answer).toMatch(/^HTTP\/1\.1 429 /);
    expect(answer).toMatch(/\r\nretry-after: 1\r\n/i);
    expect(bodies.heldBytes).toBe(0);
  });

  it.each([
    ['', 'the body is empty; it must be a JSON object'],
    ['{"model": "kvt-tiny"', 'the body is not JSON: it ends too early, after 20 characters'],
    ['{"model": NaN}', /^the body is not JSON: "N" is not expected/],
    ["{'model': 1}", /^the body is not JSON: .*at character 2$/],
    ['{"model": "a\nb"}', /^the body is not JSON: it cannot be read at character 13$/],
  ])('a body of %j says what is wrong with it', async (body, message) => {
    const { post } = await start();
    const response = await post('/v1/completions', body);
    expect(response.status).toBe(400);
    expect(((await response.json()) as { error: { message: string } }).error.message).toMatch(message);
  });
});
