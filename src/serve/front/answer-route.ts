import { randomBytes } from 'node:crypto';
import type { HttpBindings } from '@hono/node-server';
import type { Context } from 'hono';
import type { Clock } from '../../clock.js';
import type { DisaggCoordinator } from '../../coordinator/disagg-coordinator.js';
import type { Logger } from '../../observe/logger.js';
import { formatTraceparent, parseTraceparent } from '../../wire/trace-context.js';
import { SERVE_LOG_LINES } from '../serve-log.js';
import type { AdmissionGate } from './admission-gate.js';
import type { AnswerLimits, AnswerRequest } from './answer-request.js';
import type { AnswerHead, AnswerShape } from './answer-shape.js';
import { AnswerStream } from './answer-stream.js';
import type { BodyBudget } from './body-budget.js';
import { BODY_FRAGMENTED } from './body-bytes.js';
import { endConnection } from './connection-watch.js';
import { eventOf, eventStream } from './event-stream.js';
import type { FrontMetrics } from './front-metrics.js';
import { ApiError, apiErrorOf } from './openai-error.js';
import { bodyValuesFor, readJson } from './read-body.js';

export type FrontContext = Context<{ Bindings: HttpBindings }>;

/** What the routes that answer need. */
export interface AnswerParts {
  readonly clock: Clock;
  /** Unix time in ms when `clock.now()` was 0. */
  readonly unixTimeAtOriginMs: number;
  readonly coordinator: DisaggCoordinator;
  readonly gate: AdmissionGate;
  readonly metrics: FrontMetrics;
  readonly limits: AnswerLimits;
  readonly maxBodyBytes: number;
  /** Of all connections. */
  readonly bodies: BodyBudget;
  /** A reader that takes nothing for this long is cut off. */
  readonly stallLimitMs: number;
  /** Null: no lines. */
  readonly logger: Logger | null;
  /** What clients are not told. */
  readonly onError: (message: string) => void;
}

/** One request to one of the endpoints that answer: read, admitted, run, written. */
export async function answerRoute(
  c: FrontContext,
  parts: AnswerParts,
  shape: AnswerShape,
  read: (body: unknown, limits: AnswerLimits) => AnswerRequest,
): Promise<Response> {
  const id = `${shape.idPrefix}${randomBytes(12).toString('hex')}`;
  const { clock, gate, limits, unixTimeAtOriginMs } = parts;
  const startedAtMs = clock.now();
  const { signal } = c.req.raw;
  c.header('x-request-id', id);
  // Who would be turned away has nothing read, decoded and tokenised before.
  gate.assertRoom();
  const share = parts.bodies.open();
  let request: AnswerRequest;
  try {
    const { maxModelTokens } = limits.engine;
    const bodyLimits = { clock, sizeBytes: parts.maxBodyBytes, maxValues: bodyValuesFor(maxModelTokens) };
    // Node's own stream: the library's would cost a promise for each piece of it.
    const body = { headers: c.req.raw.headers, stream: c.env.incoming };
    request = read(await readJson(body, bodyLimits, share), limits);
  } catch (error) {
    // What is still to come of the body must not be taken for the next request, nor waited for.
    if (error instanceof ApiError && (error.status === 408 || error.status === 429)) c.header('connection', 'close');
    // Each turn until an answer is written has thousands of its pieces.
    if (error instanceof ApiError && error.body.error.code === BODY_FRAGMENTED)
      endConnection(c.env.outgoing, c.env.incoming.socket, error);
    throw error;
  } finally {
    share.end();
  }
  const place = await gate.enter(signal);
  let answer: AnswerStream;
  try {
    answer = new AnswerStream(parts.coordinator, limits.engine.codec, request, traceparentOf(c, parts.metrics));
  } catch (error) {
    place.leave();
    throw error;
  }
  // A client that is gone: both servers hear of it at once.
  const onGone = (): void => answer.cancel();
  signal.addEventListener('abort', onGone, { once: true });
  const facts = { http: id, route: c.req.path, stream: request.stream };
  void answer.released.then(() => {
    place.leave();
    // Node keeps a signal, and all that its listeners hold, for as long as somebody listens.
    signal.removeEventListener('abort', onGone);
    const ms = Math.round(clock.now() - startedAtMs);
    parts.logger?.info({ ...facts, rid: answer.id.toString(), ms }, SERVE_LOG_LINES.answered);
  });
  if (signal.aborted) onGone();
  const head: AnswerHead = {
    id,
    created: Math.floor((clock.now() + unixTimeAtOriginMs) / 1000),
    model: limits.engine.model,
    promptTokens: request.promptTokens.length,
    includeUsage: request.includeUsage,
    returnTokenIds: request.returnTokenIds,
  };
  const run = { parts, answer, head, shape, startedAtMs };
  try {
    // Errors before the first token have a status of their own.
    await answer.begun();
    parts.metrics.firstToken((clock.now() - startedAtMs) / 1000);
    return request.stream ? streamed(c, run) : await whole(c, run);
  } catch (error) {
    throw reported(parts, id, error);
  }
}

/** The caller's trace, '' for none: from outside, so that what does not read exactly as one goes no further. */
function traceparentOf(c: FrontContext, metrics: FrontMetrics): string {
  const given = c.req.header('traceparent');
  if (given === undefined) return '';
  const parsed = parseTraceparent(given);
  if (parsed !== null) return formatTraceparent(parsed);
  metrics.badTraceparent();
  return '';
}

interface Run {
  readonly parts: AnswerParts;
  readonly answer: AnswerStream;
  readonly head: AnswerHead;
  readonly shape: AnswerShape;
  readonly startedAtMs: number;
}

async function whole(c: FrontContext, run: Run): Promise<Response> {
  const { answer, shape, head } = run;
  const piece = await answer.whole();
  return c.json(shape.whole(head, piece, finished(run)) as Record<string, unknown>);
}

function streamed(c: FrontContext, run: Run): Response {
  const { parts, answer } = run;
  const events = eventsOf(run);
  const body = eventStream({
    clock: parts.clock,
    next: async () => (await events.next()).value ?? null,
    onGone: () => answer.cancel(),
    stallLimitMs: parts.stallLimitMs,
    onStalled: () => {
      answer.cancel();
      c.env.outgoing.destroy();
    },
  });
  c.header('content-type', 'text/event-stream; charset=utf-8');
  c.header('cache-control', 'no-cache');
  c.header('x-accel-buffering', 'no');
  return c.body(body);
}

async function* eventsOf(run: Run): AsyncGenerator<string, null> {
  const { parts, answer, shape, head } = run;
  try {
    const opening = shape.opening(head);
    if (opening !== null) yield eventOf(opening);
    for (let piece = await answer.next(); piece !== null; piece = await answer.next())
      yield eventOf(shape.part(head, piece));
    const end = finished(run);
    yield eventOf(shape.closing(head, end));
    if (head.includeUsage) yield eventOf(shape.usage(head, end));
    yield eventOf('[DONE]');
  } catch (error) {
    // The status is sent long ago: clients know an event with `error`.
    yield eventOf(reported(parts, head.id, error).body);
  }
  return null;
}

function finished({ parts, answer, head, startedAtMs }: Run) {
  const { end } = answer;
  if (end === null) throw new ApiError(500, 'the answer has no end');
  parts.metrics.answered((parts.clock.now() - startedAtMs) / 1000, head.promptTokens, end);
  return end;
}

/** As the client sees it. What it is not told goes to the log. */
function reported(parts: AnswerParts, id: string, error: unknown): ApiError {
  const known = apiErrorOf(error, id);
  if (known.status === 500)
    parts.onError(`${id}: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
  return known;
}
