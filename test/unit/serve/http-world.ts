import { connect, type Socket } from 'node:net';
import { SystemClock } from '../../../src/clock.js';
import { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import type { LogFields, Logger } from '../../../src/observe/logger.js';
import { tinyServeEngine } from '../../../src/serve/engine/tiny-serve-engine.js';
import { AdmissionGate } from '../../../src/serve/front/admission-gate.js';
import { BodyBudget } from '../../../src/serve/front/body-budget.js';
import { FrontMetrics } from '../../../src/serve/front/front-metrics.js';
import { NO_ROUTE } from '../../../src/serve/front/front-response.js';
import { httpApp, logRefusal } from '../../../src/serve/front/http-app.js';
import { HttpListener } from '../../../src/serve/front/http-listener.js';
import { HANG_LIMIT_MS, withDeadline } from '../../support/deadline.js';
import { FakeServer } from '../coordinator/fake-server.js';

export interface HttpWorldOptions {
  readonly maxLive?: number;
  readonly maxQueued?: number;
  readonly queueTimeoutMs?: number;
  readonly requestTimeoutMs?: number;
  readonly maxRetries?: number;
  readonly maxModelTokens?: number;
  readonly maxBodyBytes?: number;
  readonly bodiesBytes?: number;
  readonly stallLimitMs?: number;
}

/** The HTTP side of a front on a real socket, before servers whose requests end when the test says so. */
export async function httpWorld(options: HttpWorldOptions = {}) {
  const lines: object[] = [];
  const note =
    (level: string) =>
    (fields: LogFields, msg: string): void =>
      void lines.push({ level, msg, ...fields });
  const logger: Logger = {
    debug: note('debug'),
    info: note('info'),
    warn: note('warn'),
    error: note('error'),
    child: () => logger,
  };
  const clock = new SystemClock();
  const log: string[] = [];
  const errors: string[] = [];
  const context = new FakeServer('context', 'tcp://127.0.0.1:1', log);
  const generation = new FakeServer('generation', null, log);
  const coordinator = new DisaggCoordinator({
    clock,
    ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9, nodeId: 0, processId: 0 }),
    context,
    generation,
    scheduleStyle: 'generation_first',
    maxRetries: options.maxRetries ?? 0,
  });
  const gate = new AdmissionGate(clock, {
    maxLive: options.maxLive ?? 8,
    maxQueued: options.maxQueued ?? 8,
    queueTimeoutMs: options.queueTimeoutMs ?? HANG_LIMIT_MS,
  });
  const bodies = new BodyBudget(options.bodiesBytes ?? 1_000_000);
  const metrics = new FrontMetrics({
    clock,
    live: () => gate.live,
    queued: () => gate.queued,
    linkErrors: () => 0,
    workers: () => [],
  });
  const app = httpApp({
    clock,
    unixTimeAtOriginMs: 1e12,
    coordinator,
    gate,
    metrics,
    limits: { engine: tinyServeEngine({ max_model_tokens: options.maxModelTokens ?? 64 }), maxPromptTokens: null },
    maxBodyBytes: options.maxBodyBytes ?? 2000,
    bodies,
    stallLimitMs: options.stallLimitMs ?? HANG_LIMIT_MS,
    logger,
    onError: (message) => errors.push(message),
    health: () => ({ isReady: true, isDraining: gate.isClosed, context: [], generation: [] }),
    allMetrics: () => metrics.metrics(),
  });
  const listener = await HttpListener.open({
    app,
    hostname: '127.0.0.1',
    port: 0,
    maxConnections: 32,
    headersTimeoutMs: options.requestTimeoutMs ?? HANG_LIMIT_MS,
    requestTimeoutMs: options.requestTimeoutMs ?? HANG_LIMIT_MS,
    stallLimitMs: options.stallLimitMs ?? HANG_LIMIT_MS,
    onAnswer: (route, status) => metrics.responded(route, status),
    onRefused: (error) => logRefusal(logger, NO_ROUTE, error, null),
  });
  /** `route status`, and how often. */
  const counted = async (): Promise<Record<string, number>> => {
    const text = await metrics.metrics();
    const found = text.matchAll(/^kvt_serve_http_requests_total\{route="(.*)",status="(\d+)"\} (\d+)$/gm);
    return Object.fromEntries([...found].map(([, route, status, count]) => [`${route} ${status}`, Number(count)]));
  };
  const url = `http://127.0.0.1:${listener.port}`;
  const post = (path: string, body: unknown, more: RequestInit = {}): Promise<Response> =>
    fetch(`${url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: typeof body === 'string' ? body : JSON.stringify(body),
      ...more,
    });
  return {
    log,
    lines,
    errors,
    context,
    generation,
    gate,
    bodies,
    counted,
    port: listener.port,
    url,
    post,
    complete: (more: object = {}, init: RequestInit = {}) =>
      post('/v1/completions', { model: 'kvt-tiny', prompt: 'ab', max_tokens: 8, ...more }, init),
    /** A request as bytes, for what no HTTP library would send. */
    raw: (text: string): RawClient => new RawClient(listener.port, text),
    close: async () => {
      listener.abort();
      await listener.close();
    },
  };
}

/** One connection; collects what comes back. */
export class RawClient {
  readonly socket: Socket;
  readonly #ended: Promise<string>;
  #text = '';

  constructor(port: number, text: string) {
    this.socket = connect(port, '127.0.0.1');
    this.socket.setEncoding('utf8');
    this.socket.on('data', (data: string) => {
      this.#text += data;
    });
    // A server that answers and resets: what it wrote is what counts.
    this.socket.on('error', () => {});
    this.#ended = new Promise((resolve) => this.socket.on('close', () => resolve(this.#text)));
    this.socket.write(text);
  }

  answer(): Promise<string> {
    return withDeadline(
      this.#ended,
      HANG_LIMIT_MS,
      () => `the connection is open; it has said ${JSON.stringify(this.#text)}`,
    );
  }
}

/** Waits until `holds`; what it waits for happens in this process. */
export async function until(holds: () => boolean, describe: () => string): Promise<void> {
  const limitMs = performance.now() + HANG_LIMIT_MS;
  while (!holds()) {
    if (performance.now() > limitMs) throw new Error(`it did not come: ${describe()}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}
