import { type IncomingMessage, type Server, type ServerResponse, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type FrontResponse, NO_ROUTE, type OnAnswer } from './front-response.js';
import { ApiError } from './openai-error.js';

/** Requests of one connection that wait for their answers; clients send one after another, if not one at a time. */
export const MAX_PIPELINED = 32;

/** A client that sends on after it was refused has so long to take the refusal. */
const LINGER_MS = 1000;

/** A server whose answers are counted. */
export type FrontServer = Server<typeof IncomingMessage, typeof FrontResponse>;

export interface ConnectionWatch {
  /** A reader that takes nothing of a complete answer for this long is cut off. */
  readonly stallLimitMs: number;
  readonly onAnswer: OnAnswer;
  /** A request was refused that the application never saw. */
  readonly onRefused: (error: ApiError) => void;
}

interface Connection {
  /** Those that are not written yet. */
  readonly answers: Set<FrontResponse>;
  /** Complete, and being taken by the client. */
  ending: FrontResponse | null;
  /** The last one that came; only its body can still be on its way. */
  latest: FrontResponse;
}

/**
 * Role: what Node leaves open about the answers of a connection: that nobody waits for them any more, that nobody takes them, and what a client
 *   is told whose request never became one. And the rest of a body whose request was answered before: nobody wants it, and it can come in any
 *   number of pieces, each of which would cost a turn its time.
 * Why: of requests sent one behind the other only the first one's answer hears that the connection closed, and the others would be computed for
 *   nobody; a complete answer that is not taken would hold its connection for ever.
 */
export function watchConnections(server: FrontServer, { stallLimitMs, onAnswer, onRefused }: ConnectionWatch): void {
  const connections = new WeakMap<Duplex, Connection>();
  const opened = (socket: Socket, answer: FrontResponse): Connection => {
    const connection: Connection = { answers: new Set(), ending: null, latest: answer };
    connections.set(socket, connection);
    socket.once('close', () => {
      // The others hear of it from the socket that they were given.
      for (const one of [...connection.answers]) if (one.socket === null) one.emit('close');
    });
    // What Node ends a connection with after its last answer.
    const destroySoon = socket.destroySoon.bind(socket);
    socket.destroySoon = () => (connection.latest.req.complete ? destroySoon() : linger(socket));
    return connection;
  };
  // First of all, so that no answer is written before.
  server.prependListener('request', ({ socket }, answer) => {
    const connection = connections.get(socket) ?? opened(socket, answer);
    const { answers } = connection;
    connection.latest = answer;
    answer.onAnswer = onAnswer;
    answers.add(answer);
    answer.once('close', () => answers.delete(answer));
    // Without a bound a few KiB of requests would have as many answers made at once, and the rest of the clients wait for them.
    if (answers.size > MAX_PIPELINED) socket.destroy();
    // Node looks whether the client took anything meanwhile, and ends the connection when it did not.
    answer.once('prefinish', () => {
      connection.ending = answer;
      socket.setTimeout(stallLimitMs);
    });
    answer.once('finish', () => {
      answers.delete(answer);
      if (connection.ending !== answer) return;
      connection.ending = null;
      // The next one is still being computed, which is nobody's fault; without a next one Node has set the limit of an idle connection.
      if (answers.size > 0) socket.setTimeout(0);
    });
  });
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const connection = connections.get(socket);
    // Where it stands behind others that wait for their answers, this one would be taken for theirs. The request that could not be read may be
    // known already, and only its body be wrong.
    const known = connection === undefined || connection.latest.req.complete ? null : connection.latest;
    const isNext = [...(connection?.answers ?? [])].every((answer) => answer === known) && known?.headersSent !== true;
    if (socket.writable && isNext && error.code !== 'ECONNRESET') {
      const refusal = clientError(error.code);
      // Who ended the connection in the middle of a request has left, and may still read why it came to nothing.
      const isGone = error.code === 'HPE_INVALID_EOF_STATE';
      const status = isGone ? 499 : refusal.status;
      if (known === null) onAnswer(NO_ROUTE, status);
      else known.count(status);
      if (!isGone) onRefused(refusal);
      socket.write(answerOf(refusal));
    }
    socket.destroy();
  });
  // Node would answer these two itself, or not at all.
  server.on('checkExpectation', (_, answer) => {
    const refusal = new ApiError(417, 'of expect only 100-continue is known; leave the header out');
    answer.onAnswer = onAnswer;
    onRefused(refusal);
    const { status, body } = refusal;
    answer.writeHead(status, { 'content-type': 'application/json', connection: 'close' }).end(JSON.stringify(body));
  });
  server.on('connect', (_, socket) => {
    const refusal = new ApiError(405, 'CONNECT is not possible here; this is no proxy');
    onAnswer(NO_ROUTE, refusal.status);
    onRefused(refusal);
    socket.end(answerOf(refusal));
  });
}

/** Ends a connection whose client still sends: nothing is read any more, but what was answered would be lost if it were cut off. */
function linger(socket: Socket): void {
  if (socket.destroyed) return;
  socket.end();
  socket.setTimeout(LINGER_MS);
  // Node begins to read the rest for nobody at the end of this turn's work.
  process.nextTick(() => socket.pause());
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
