import { createServer, IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { getRequestListener, type HttpBindings } from '@hono/node-server';
import type { Hono } from 'hono';
import { ConfigError } from '../../errors.js';
import { type ConnectionWatch, type FrontServer, watchConnections } from './connection-watch.js';
import { FrontResponse, hasBody } from './front-response.js';
import { ApiError } from './openai-error.js';

export interface HttpListenerOptions extends ConnectionWatch {
  readonly app: Hono<{ Bindings: HttpBindings }>;
  readonly hostname: string;
  /** 0: any free port. */
  readonly port: number;
  /** Clients connected at once; more are not accepted. */
  readonly maxConnections: number;
  /** From the first byte of a request to the end of its headers, and of its body. */
  readonly headersTimeoutMs: number;
  readonly requestTimeoutMs: number;
}

/** Bytes of all headers of a request; what has more is answered with 431. */
const MAX_HEADER_BYTES = 16 * 1024;
const KEEP_ALIVE_MS = 5000;
/** How often slow requests are looked for. */
const CHECK_INTERVAL_MS = 1000;

/**
 * Role: the one listening HTTP socket, and its bounds against clients that are slow or many.
 * Ownership: owns the server and its connections.
 */
export class HttpListener {
  readonly #server: FrontServer;

  private constructor(server: FrontServer) {
    this.#server = server;
  }

  /** @throws ConfigError for an address that cannot be listened on */
  static async open(options: HttpListenerOptions): Promise<HttpListener> {
    const { app, hostname, port, maxConnections, headersTimeoutMs, requestTimeoutMs, onRefused } = options;
    const refusal = (error: ApiError): Response => {
      onRefused(error);
      return Response.json(error.body, { status: error.status });
    };
    const answer = getRequestListener(
      (request, env) => {
        const bindings = env as HttpBindings;
        const { incoming } = bindings;
        // What was read from a connection before it was ended is answered to nobody.
        if (incoming.socket.destroyed) return new Response(null, { status: 499 });
        if (incoming.headers.host === undefined && incoming.httpVersion === '1.1')
          return refusal(new ApiError(400, 'the host header is missing; HTTP 1.1 demands one'));
        // Node takes the first; whoever stands before this server may have taken another.
        if ((incoming.headersDistinct['host']?.length ?? 0) > 1)
          return refusal(new ApiError(400, 'the host header is given twice; send one'));
        return app.fetch(request, bindings);
      },
      {
        // The library would put its own Request and Response in the place of the global ones.
        overrideGlobalObjects: false,
        // It would end connections by a clock of its own whose next request the answer has invited.
        autoCleanupIncoming: false,
        // For clients of HTTP 1.0, which name none.
        hostname: 'localhost',
        // What no request can be made of; everything behind that the application answers.
        errorHandler: () => refusal(new ApiError(400, 'the path or the host header of the request cannot be read')),
      },
    );
    const server = createServer(
      {
        IncomingMessage,
        ServerResponse: FrontResponse,
        maxHeaderSize: MAX_HEADER_BYTES,
        headersTimeout: headersTimeoutMs,
        requestTimeout: requestTimeoutMs,
        keepAliveTimeout: KEEP_ALIVE_MS,
        connectionsCheckingInterval: CHECK_INTERVAL_MS,
        noDelay: true,
        // Answered above, in the shape of every error.
        requireHostHeader: false,
      },
      (incoming, outgoing) => {
        // A body that came in one piece with its head is complete by then, and its connection can be kept.
        if (hasBody(incoming)) setImmediate(() => void answer(incoming, outgoing));
        else void answer(incoming, outgoing);
      },
    );
    server.maxConnections = maxConnections;
    watchConnections(server, options);
    await new Promise<void>((resolve, reject) => {
      const onError = (error: NodeJS.ErrnoException): void =>
        reject(
          new ConfigError(`cannot listen on ${hostname}:${port} (${error.code}); choose another hostname or port`, {
            cause: error,
          }),
        );
      server.once('error', onError);
      server.listen({ host: hostname, port }, () => {
        server.off('error', onError);
        resolve();
      });
    });
    return new HttpListener(server);
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** No new connections; those without a request are closed at once, the others when their answer is written. */
  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeIdleConnections();
    await closed;
  }

  /** Also ends answers that are being written. */
  abort(): void {
    this.#server.closeAllConnections();
  }
}
