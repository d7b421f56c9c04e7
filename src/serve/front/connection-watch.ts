import { type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { ApiError } from './openai-error.js';

/** Requests of one connection that wait for their answers; clients send one after another, if not one at a time. */
export const MAX_PIPELINED = 32;

/** A client that sends on after it was refused has so long to take the refusal. */
const LINGER_MS = 1000;

/** The answers of one connection that are not written yet. */
interface Connection {
  readonly answers: Set<ServerResponse>;
  /** Complete, and being taken by the client. */
  ending: ServerResponse | null;
}

/**
 * Role: what Node leaves open about the answers of a connection: that nobody waits for them any more, that nobody takes them, and what a client
 *   is told whose request never became one. And the rest of a body whose request was answered before: nobody wants it, and it can come in any
 *   number of pieces, each of which would cost a turn its time.
 * Why: of requests sent one behind the other only the first one's answer hears that the connection closed, and the others would be computed for
 *   nobody; a complete answer that is not taken would hold its connection for ever.
 */
export function watchConnections(server: Server, stallLimitMs: number): void {
  const connections = new WeakMap<Duplex, Connection>();
  // First of all, so that no answer is written before.
  server.prependListener('request', (request, answer: ServerResponse) => {
    const { socket } = request;
    let connection = connections.get(socket);
    if (connection === undefined) {
      const made: Connection = { answers: new Set(), ending: null };
      connection = made;
      connections.set(socket, made);
      socket.once('close', () => {
        // The others hear of it from the socket that they were given.
        for (const one of [...made.answers]) if (one.socket === null) one.emit('close');
      });
    }
    const { answers } = connection;
    const of = connection;
    answers.add(answer);
    answer.once('close', () => answers.delete(answer));
    // Without a bound a few KiB of requests would have as many answers made at once, and the rest of the clients wait for them.
    if (answers.size > MAX_PIPELINED) socket.destroy();
    // Node looks whether the client took anything meanwhile, and ends the connection when it did not.
    answer.once('prefinish', () => {
      of.ending = answer;
      socket.setTimeout(stallLimitMs);
    });
    answer.once('finish', () => {
      answers.delete(answer);
      if (!request.complete && !socket.destroyed) {
        // Not read any more, but not cut off either: what was answered would be lost with it.
        socket.pause();
        socket.end();
        socket.setTimeout(LINGER_MS);
        return;
      }
      if (of.ending !== answer) return;
      of.ending = null;
      // The next one is still being computed, which is nobody's fault; without a next one Node has set the limit of an idle connection.
      if (answers.size > 0) socket.setTimeout(0);
    });
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const isUnderWay = [...(connections.get(socket)?.answers ?? [])].some(({ headersSent }) => headersSent);
    if (socket.writable && !isUnderWay && error.code !== 'ECONNRESET') socket.write(answerOf(clientError(error.code)));
    socket.destroy();
  });
  // Node would answer these two itself, or not at all.
  server.on('checkExpectation', (_, answer: ServerResponse) => {
    const { status, body } = new ApiError(417, 'of expect only 100-continue is known; leave the header out');
    answer.writeHead(status, { 'content-type': 'application/json', connection: 'close' }).end(JSON.stringify(body));
  });
  server.on('connect', (_, socket) => {
    socket.end(answerOf(new ApiError(405, 'CONNECT is not possible here; this is no proxy')));
  });
}

/** Answers a request whose body is not worth reading on, and ends its connection with what was read of it so far. */
export function endConnection(outgoing: ServerResponse, socket: Duplex, error: ApiError): void {
  // Without a socket of its own it stands behind others, whose answer this would be taken for.
  if (outgoing.socket !== null && !outgoing.headersSent && socket.writable) socket.write(answerOf(error));
  socket.destroy();
}

function answerOf({ status, body }: ApiError): string {
  const text = JSON.stringify(body);
  return (
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nconnection: close\r\ncontent-type: application/json\r\n` +
    `content-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`
  );
}

function clientError(code: string | undefined): ApiError {
  switch (code) {
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return new ApiError(408, 'the request was not sent in time (--request-timeout-ms; headers within 10 s)');
    case 'HPE_HEADER_OVERFLOW':
      return new ApiError(431, 'the headers are too large; 16 KiB are possible');
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return new ApiError(413, 'the chunk extensions of the body are too large', { code: 'body_too_large' });
    default:
      return new ApiError(
        400,
        'this is no HTTP request; the server speaks plain HTTP 1.1 (TLS belongs to a proxy in front of it)',
      );
  }
}
