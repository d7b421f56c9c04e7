import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Clock } from '../../clock.js';
import { registryText } from '../../observe/registry-text.js';
import type { AnswerEnd } from './answer-stream.js';

/** What the front counts elsewhere and shows here. */
export interface FrontGauges {
  readonly clock: Clock;
  readonly live: () => number;
  readonly queued: () => number;
  /** What frames, timers and handlers of the links would have thrown. */
  readonly linkErrors: () => number;
  readonly workers: () => readonly { readonly name: string; readonly isReady: boolean; readonly starts: number }[];
}

const SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

/** Role: the front's own metrics: HTTP, and what the coordinator made of it. */
export class FrontMetrics {
  /** Also for what observes the coordinator. */
  readonly registry = new Registry();
  readonly #clock: Clock;
  readonly #http = new Counter({
    name: 'kvt_serve_http_requests_total',
    help: 'Answers to HTTP requests by route and status; route other: a path that is not there, none: refused before its path was looked at; 499: the client left',
    labelNames: ['route', 'status'],
    registers: [this.registry],
  });
  readonly #duration = new Histogram({
    name: 'kvt_serve_request_seconds',
    help: 'From the request to the end of its answer',
    buckets: SECONDS,
    registers: [this.registry],
  });
  readonly #firstToken = new Histogram({
    name: 'kvt_serve_first_token_seconds',
    help: 'From the request to its first token, the wait in the queue included',
    buckets: SECONDS,
    registers: [this.registry],
  });
  readonly #tokens = new Counter({
    name: 'kvt_serve_tokens_total',
    help: 'Tokens of answered requests: prompt, cached (of those) and completion',
    labelNames: ['kind'],
    registers: [this.registry],
  });
  readonly #retries = new Counter({
    name: 'kvt_serve_retries_total',
    help: 'Second and later tries of answered requests',
    registers: [this.registry],
  });
  readonly #badTraceparents = new Counter({
    name: 'kvt_serve_bad_traceparents_total',
    help: 'Headers `traceparent` that were dropped because they are not valid',
    registers: [this.registry],
  });

  constructor({ clock, live, queued, linkErrors, workers }: FrontGauges) {
    this.#clock = clock;
    const registers = [this.registry];
    collectDefaultMetrics({ register: this.registry });
    const gauge = (name: string, help: string, read: () => number): void => {
      new Gauge({
        name,
        help,
        registers,
        collect() {
          this.set(read());
        },
      });
    };
    gauge('kvt_serve_requests_live', 'Requests at the servers', live);
    gauge('kvt_serve_requests_queued', 'Requests that wait for one of those to end', queued);
    gauge('kvt_serve_link_errors', 'Internal errors at the links to workers; each is in the log', linkErrors);
    new Gauge({
      name: 'kvt_serve_worker_ready',
      help: '1: the worker takes requests',
      labelNames: ['server'],
      registers,
      collect() {
        for (const { name, isReady } of workers()) this.set({ server: name }, isReady ? 1 : 0);
      },
    });
    new Gauge({
      name: 'kvt_serve_worker_starts',
      help: 'Processes started for this worker; 0: it was started elsewhere',
      labelNames: ['server'],
      registers,
      collect() {
        for (const { name, starts } of workers()) this.set({ server: name }, starts);
      },
    });
  }

  responded(route: string, status: number): void {
    this.#http.inc({ route, status: String(status) });
  }

  firstToken(seconds: number): void {
    this.#firstToken.observe(seconds);
  }

  answered(seconds: number, promptTokens: number, end: AnswerEnd): void {
    this.#duration.observe(seconds);
    this.#tokens.inc({ kind: 'prompt' }, promptTokens);
    this.#tokens.inc({ kind: 'cached' }, end.cachedTokens);
    this.#tokens.inc({ kind: 'completion' }, end.completionTokens);
    this.#retries.inc(end.attempts - 1);
  }

  badTraceparent(): void {
    this.#badTraceparents.inc();
  }

  metrics(): Promise<string> {
    // Only where the process was started with --expose-gc: figures of the heap then show what is in use.
    globalThis.gc?.();
    return registryText(this.registry, this.#clock);
  }
}
