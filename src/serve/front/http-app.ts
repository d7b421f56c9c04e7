import type { HttpBindings } from '@hono/node-server';
import { Hono } from 'hono';
import type { ContentfulStatusCode } from 'hono/utils/http-status';
import type { ServerStatus } from '../../coordinator/server-pool.js';
import type { Logger } from '../../observe/logger.js';
import { SERVE_LOG_LINES } from '../serve-log.js';
import { readChat, readCompletion } from './answer-request.js';
import { type AnswerParts, answerRoute, type FrontContext } from './answer-route.js';
import { CHAT, COMPLETION } from './answer-shape.js';
import { FrontResponse } from './front-response.js';
import { ApiError, apiErrorOf } from './openai-error.js';

/** What `/health` says of one worker. */
export interface WorkerStatus extends Omit<ServerStatus, 'incarnation' | 'liveTokens'> {
  /** 0: unknown. */
  readonly pid: number;
}

/** What the routes show that do not answer. */
export interface AppParts extends AnswerParts {
  readonly health: () => {
    readonly isReady: boolean;
    readonly isDraining: boolean;
    readonly context: readonly WorkerStatus[];
    readonly generation: readonly WorkerStatus[];
  };
  /** Of all processes, as text of the Prometheus format. */
  readonly allMetrics: () => Promise<string | Uint8Array<ArrayBuffer>>;
}

const MODEL_ROUTE = '/v1/models/:model{.+}';
const ROUTES: Readonly<Record<string, 'GET' | 'POST'>> = {
  '/v1/completions': 'POST',
  '/v1/chat/completions': 'POST',
  '/v1/models': 'GET',
  [MODEL_ROUTE]: 'GET',
  '/health': 'GET',
  '/metrics': 'GET',
};

/** As it is counted: what a client may have made up is no name. */
function routeOf(path: string): string {
  if (/^\/v1\/models\/./.test(path)) return '/v1/models/{model}';
  return path !== MODEL_ROUTE && Object.hasOwn(ROUTES, path) ? path : 'other';
}

/** @param http its `x-request-id`; null: it has none */
export function logRefusal(
  logger: Logger | null,
  route: string,
  { status, body }: ApiError,
  http: string | null,
): void {
  logger?.info({ http, route, status, code: body.error.code }, SERVE_LOG_LINES.refused);
}

/** The HTTP interface. Every answer that is an error has the shape of OpenAI's. */
export function httpApp(parts: AppParts): Hono<{ Bindings: HttpBindings }> {
  const app = new Hono<{ Bindings: HttpBindings }>();
  const { limits } = parts;
  const created = Math.floor((parts.clock.now() + parts.unixTimeAtOriginMs) / 1000);
  const model = { id: limits.engine.model, object: 'model', created, owned_by: 'kv-transceiver' };

  app.use('*', async (c, next) => {
    const { outgoing } = c.env;
    if (outgoing instanceof FrontResponse) outgoing.route = routeOf(c.req.path);
    await next();
  });
  app.post('/v1/completions', (c) => answerRoute(c, parts, COMPLETION, readCompletion));
  app.post('/v1/chat/completions', (c) => answerRoute(c, parts, CHAT, readChat));
  app.get('/v1/models', (c) => c.json({ object: 'list', data: [model] }));
  app.get(MODEL_ROUTE, (c) => {
    if (c.req.param('model') === model.id) return c.json(model);
    throw new ApiError(404, `that model does not exist; this server has ${model.id}`, { code: 'model_not_found' });
  });
  app.get('/health', (c) => {
    const { isReady, isDraining, context, generation } = parts.health();
    const status = isDraining ? 'draining' : isReady ? 'ready' : 'not_ready';
    return c.json({ status, context, generation }, status === 'ready' ? 200 : 503);
  });
  app.get('/metrics', async (c) => {
    c.header('content-type', 'text/plain; version=0.0.4; charset=utf-8');
    return c.body(await parts.allMetrics());
  });
  for (const [path, method] of Object.entries(ROUTES))
    app.all(path, (c) => {
      c.header('allow', method);
      throw new ApiError(405, `${c.req.method} is not possible here; use ${method}`);
    });
  const refuse = (error: Error, c: FrontContext): Response => {
    const http = c.res.headers.get('x-request-id');
    const known = apiErrorOf(error, http ?? 'this request');
    if (!(error instanceof ApiError) && known.status === 500) parts.onError(error.stack ?? error.message);
    logRefusal(parts.logger, routeOf(c.req.path), known, http);
    if (known.retryAfterS !== null) c.header('retry-after', String(known.retryAfterS));
    // Who is told to leave should not send the next request over the same connection.
    if (known.body.error.code === 'shutting_down') c.header('connection', 'close');
    return c.json(known.body, known.status as ContentfulStatusCode);
  };
  app.notFound((c) => refuse(new ApiError(404, 'there is nothing here; the API is under /v1'), c));
  app.onError(refuse);
  return app;
}
