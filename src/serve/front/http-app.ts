import type { HttpBindings } from '@hono/node-server';
import { Hono } from 'hono';
import type { ContentfulStatusCode } from 'hono/utils/http-status';
import type { ServerStatus } from '../../coordinator/server-pool.js';
import { SERVE_LOG_LINES } from '../serve-log.js';
import { readChat, readCompletion } from './answer-request.js';
import { type AnswerParts, answerRoute } from './answer-route.js';
import { CHAT, COMPLETION } from './answer-shape.js';
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

const ROUTES: Readonly<Record<string, 'GET' | 'POST'>> = {
  '/v1/completions': 'POST',
  '/v1/chat/completions': 'POST',
  '/v1/models': 'GET',
  '/v1/models/:model{.+}': 'GET',
  '/health': 'GET',
  '/metrics': 'GET',
};

/** What a client may have made up is no name. */
function routeOf(path: string): string {
  return Object.hasOwn(ROUTES, path) ? path : 'other';
}

/** The HTTP interface. Every answer that is an error has the shape of OpenAI's. */
export function httpApp(parts: AppParts): Hono<{ Bindings: HttpBindings }> {
  const app = new Hono<{ Bindings: HttpBindings }>();
  const { metrics, limits } = parts;
  const created = Math.floor((parts.clock.now() + parts.unixTimeAtOriginMs) / 1000);
  const model = { id: limits.engine.model, object: 'model', created, owned_by: 'kv-transceiver' };

  app.use('*', async (c, next) => {
    await next();
    metrics.responded(routeOf(c.req.path), c.res.status);
  });
  app.post('/v1/completions', (c) => answerRoute(c, parts, COMPLETION, readCompletion));
  app.post('/v1/chat/completions', (c) => answerRoute(c, parts, CHAT, readChat));
  app.get('/v1/models', (c) => c.json({ object: 'list', data: [model] }));
  app.get('/v1/models/:model{.+}', (c) => {
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
  app.notFound(() => {
    throw new ApiError(404, 'there is nothing here; the API is under /v1');
  });
  app.onError((error, c) => {
    const known = apiErrorOf(error, c.res.headers.get('x-request-id') ?? 'this request');
    if (!(error instanceof ApiError) && known.status === 500) parts.onError(error.stack ?? error.message);
    const http = c.res.headers.get('x-request-id');
    const refusal = { http, route: routeOf(c.req.path), status: known.status, code: known.body.error.code };
    parts.logger?.info(refusal, SERVE_LOG_LINES.refused);
    if (known.retryAfterS !== null) c.header('retry-after', String(known.retryAfterS));
    // Who is told to leave should not send the next request over the same connection.
    if (known.body.error.code === 'shutting_down') c.header('connection', 'close');
    return c.json(known.body, known.status as ContentfulStatusCode);
  });
  return app;
}
