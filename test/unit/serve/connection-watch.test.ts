import { once } from 'node:events';
import { createServer, IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { type FrontServer, watchConnections } from '../../../src/serve/front/connection-watch.js';
import { FrontResponse } from '../../../src/serve/front/front-response.js';
import { HANG_LIMIT_MS, until, withDeadline } from '../../support/deadline.js';

const ASK = 'GET / HTTP/1.1\r\nhost: x\r\n\r\n';

let server: FrontServer;
let client: Socket;
afterEach(async () => {
  client.destroy();
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
});

/** @param answer for each request, in order */
async function start(stallLimitMs: number, answer: (response: ServerResponse, index: number) => void) {
  let count = 0;
  server = createServer({ IncomingMessage, ServerResponse: FrontResponse }, (_, response) => answer(response, count++));
  watchConnections(server, { stallLimitMs, onAnswer: () => {}, onRefused: () => {} });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection') as Promise<[Socket]>;
  client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  client.on('error', () => {});
  return (await accepted)[0];
}

describe('connections', () => {
  it('whose client takes nothing of a whole answer are ended', async () => {
    // More than the kernel keeps for both ends.
    const socket = await start(50, (response) => response.end(Buffer.alloc(32 * 1024 * 1024)));
    client.pause();
    const closed = once(socket, 'close');
    client.write(ASK);
    await withDeadline(closed, HANG_LIMIT_MS, () => `still open, ${socket.writableLength} bytes to write`);
    expect(client.bytesRead).toBeLessThan(32 * 1024 * 1024);
  });

  it('whose next answer is not ready have no limit', async () => {
    const answers: ServerResponse[] = [];
    const socket = await start(50_000, (response) => answers.push(response));
    client.write(ASK + ASK);
    await until(
      () => answers.length === 2,
      () => `${answers.length} requests came`,
    );
    const [first, second] = answers as [ServerResponse, ServerResponse];
    const limits: number[] = [];
    first.once('prefinish', () => limits.push(socket.timeout ?? 0));
    const finished = once(first, 'finish');
    first.end('one');
    await finished;
    expect([...limits, socket.timeout]).toEqual([50_000, 0]);
    const ended = once(second, 'finish');
    second.end('two');
    await ended;
    // What Node sets for a connection without a request.
    expect(socket.timeout).toBeLessThan(50_000);
    expect(socket.timeout).toBeGreaterThan(0);
  });

  it('whose next answer was ready before its turn have the limit again', async () => {
    const answers: ServerResponse[] = [];
    const socket = await start(50_000, (response) => answers.push(response));
    client.pause();
    client.write(ASK + ASK);
    await until(
      () => answers.length === 2,
      () => `${answers.length} requests came`,
    );
    const [first, second] = answers as [ServerResponse, ServerResponse];
    second.end(Buffer.alloc(32 * 1024 * 1024));
    const finished = once(first, 'finish');
    first.end('one');
    await finished;
    expect(socket.timeout).toBe(50_000);
  });

  it('whose body is not read to its end are not cut off: what was answered would be lost', async () => {
    const socket = await start(50_000, (response) => response.end('one'));
    client.resume();
    const ended = once(client, 'end');
    client.write(`POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n${'x'.repeat(1000)}`);
    await withDeadline(ended, HANG_LIMIT_MS, () => `still open, ${client.bytesRead} bytes came`);
    expect([socket.writableEnded, socket.isPaused(), socket.destroyed]).toEqual([true, true, false]);
    await withDeadline(once(socket, 'close'), HANG_LIMIT_MS, () => 'it lingers');
  });
});
