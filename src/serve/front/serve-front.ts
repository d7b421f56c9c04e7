import { type Clock, SystemClock } from '../../clock.js';
import { isLoopback } from '../../config/host-address.js';
import type { DisaggConfig } from '../../config/index.js';
import { DisaggCoordinator } from '../../coordinator/disagg-coordinator.js';
import { ConfigError } from '../../errors.js';
import { Observation } from '../../observe/observation.js';
import { loadEngine } from '../engine/load-engine.js';
import { engineLabel, type ServeEngine } from '../engine/serve-engine.js';
import type { WorkerLink } from '../link/worker-link.js';
import { inSection, type Rejection } from '../located-error.js';
import { checkServable } from '../servable.js';
import type { LogLevel, ServeLog } from '../serve-log.js';
import { AdmissionGate, type AdmissionLimits } from './admission-gate.js';
import { BodyBudget } from './body-budget.js';
import { FrontIds } from './front-ids.js';
import { FrontMetrics } from './front-metrics.js';
import { NO_ROUTE } from './front-response.js';
import { httpApp, logRefusal, type WorkerStatus } from './http-app.js';
import { HttpListener, type HttpListenerOptions } from './http-listener.js';
import { mergeMetrics } from './merge-metrics.js';
import { bodyBytesFor } from './read-body.js';
import { routerOf } from './routers.js';
import { SharedMetrics } from './shared-metrics.js';
import { WorkerSide } from './worker-side.js';

export interface ServeFrontOptions
  extends AdmissionLimits,
    Omit<HttpListenerOptions, 'app' | 'hostname' | 'port' | 'onAnswer' | 'onRefused'> {
  readonly config: DisaggConfig;
  /** Of the file that it was read from. */
  readonly rejection: Rejection;
  /** Absolute path; null: the tiny engine. */
  readonly engineModule: string | null;
  readonly controlHost: string | null;
  /** Null: what the model can use. */
  readonly maxBodyBytes: number | null;
  /** For how long the metrics are handed out after they were collected. */
  readonly metricsAgeMs: number;
  readonly log: ServeLog;
  /** Of the workers of this machine. */
  readonly logLevel: LogLevel;
}

/** Of all bodies that are being read; more for those who allow large ones, so that several fit. */
const BODIES_BYTES = 64 * 1024 * 1024;
const BODIES_AT_LEAST = 4;
/** How long workers may take to end once no request is left. */
const WORKER_STOP_MS = 3000;

/**
 * Role: the front process of `kv-transceiver serve`: HTTP on one side, workers on the other, a coordinator between.
 * Ownership: owns the listener, the links and the worker processes of this machine; `close` and `kill` leave nothing behind.
 */
export class ServeFront {
  readonly engine: ServeEngine;
  readonly #gate: AdmissionGate;
  readonly #coordinator: DisaggCoordinator;
  readonly #sides: readonly WorkerSide[];
  #listener: HttpListener | null = null;
  #observation: Observation | null = null;

  private constructor(
    engine: ServeEngine,
    gate: AdmissionGate,
    coordinator: DisaggCoordinator,
    sides: readonly WorkerSide[],
  ) {
    this.engine = engine;
    this.#gate = gate;
    this.#coordinator = coordinator;
    this.#sides = sides;
  }

  /**
   * Listens and starts the workers; resolves when those of this machine are ready.
   * @throws ConfigError for what a change of the settings would mend, CapabilityError for what this machine lacks
   */
  static async open(options: ServeFrontOptions): Promise<ServeFront> {
    const { config, engineModule, controlHost, logLevel, rejection } = options;
    const groups = [config.context, config.generation];
    for (const group of groups) await inSection(rejection, group.role, () => checkServable(group));
    const onWarning = options.log.warn;
    const clock = new SystemClock();
    const [engine, other] = (await Promise.all(
      groups.map((group) => inSection(rejection, group.role, () => loadEngine(engineModule, group.engine, group))),
    )) as [ServeEngine, ServeEngine];
    const label = engineLabel(engine);
    await inSection(rejection, 'generation', () => checkSameEngine(label, engineLabel(other)));
    for (const { setting, message } of config.warnings) onWarning(`${setting}: ${message}`);
    if (!isLoopback(config.hostname))
      onWarning(
        `hostname ${config.hostname} can be reached from other machines, and nothing asks who calls; put a proxy that does in front of it`,
      );
    const sides: WorkerSide[] = [];
    const ids = new FrontIds({
      clock,
      unixTimeAtOriginMs: Date.now() - clock.now(),
      nodeId: config.nodeId,
      onWarning,
    });
    let opened: ServeFront | null = null;
    const isEnding = (): boolean => opened?.isEnding === true;
    const shared = { clock, config, ids, engineModule, engineLabel: label, controlHost, logLevel, onWarning, isEnding };
    let listener: HttpListener | null = null;
    try {
      for (const group of groups)
        sides.push(await inSection(rejection, group.role, () => WorkerSide.open({ ...shared, group })));
      const front = ServeFront.#assemble(options, clock, ids, engine, sides);
      opened = front;
      listener = await front.#listen(options, clock);
      front.#listener = listener;
      await Promise.all(sides.map((side) => inSection(rejection, side.role, () => side.start())));
      return front;
    } catch (error) {
      for (const side of sides) side.kill();
      listener?.abort();
      await Promise.allSettled([listener?.close(), ...sides.map((side) => side.close(0))]);
      throw error;
    }
  }

  static #assemble(
    { config, log, ...limits }: ServeFrontOptions,
    clock: Clock,
    { ids }: FrontIds,
    engine: ServeEngine,
    sides: readonly WorkerSide[],
  ): ServeFront {
    const [context, generation] = sides as readonly [WorkerSide, WorkerSide];
    const coordinator = new DisaggCoordinator({
      clock,
      onWarning: log.warn,
      ids,
      context: context.links,
      generation: generation.links,
      scheduleStyle: config.scheduleStyle,
      contextRouter: routerOf(config.context.router, engine.tokensPerBlock),
      generationRouter: routerOf(config.generation.router, engine.tokensPerBlock),
      maxRetries: config.maxRetries,
    });
    return new ServeFront(engine, new AdmissionGate(clock, limits), coordinator, sides);
  }

  get port(): number {
    return this.#listener?.port ?? 0;
  }

  /** From `close` on. */
  get isEnding(): boolean {
    return this.#gate.isClosed;
  }

  /** Turns new requests away and lets those under way end; what is left at the deadline is cancelled. Then ends everything. */
  async close(deadlineMs: number): Promise<void> {
    await Promise.all([this.#gate.close(), this.#coordinator.close({ deadlineMs })]);
    await this.#gate.idle();
    // Answers that are complete are still being written to their clients.
    const listener = this.#listener;
    const written = listener?.close();
    const timer = setTimeout(() => listener?.abort(), WORKER_STOP_MS);
    await Promise.all(this.#sides.map((side) => side.close(WORKER_STOP_MS)));
    await written;
    clearTimeout(timer);
    this.#observation?.close();
  }

  /** Ends the worker processes at once; the caller is about to exit. */
  kill(): void {
    for (const side of this.#sides) side.kill();
  }

  #listen(options: ServeFrontOptions, clock: Clock): Promise<HttpListener> {
    const { config, stallLimitMs, log } = options;
    const maxBodyBytes = options.maxBodyBytes ?? bodyBytesFor(this.engine.maxModelTokens);
    const metrics = new FrontMetrics({
      clock,
      live: () => this.#gate.live,
      queued: () => this.#gate.queued,
      linkErrors: () => this.#sides.reduce((sum, side) => sum + side.internalErrors, 0),
      workers: () => this.#sides.flatMap((side) => side.status()),
    });
    const observation = new Observation({
      config: { metrics: true, tracing: this.#sides.some(({ tracing }) => tracing) },
      registry: metrics.registry,
      clock,
      ...(log.logger === null ? {} : { logger: log.logger }),
    });
    observation.attach({ coordinator: this.#coordinator });
    this.#observation = observation;
    const all = new SharedMetrics(clock, options.metricsAgeMs, async () => {
      const front = { labels: { worker: 'front' }, text: await metrics.metrics() };
      const workers = await Promise.all(this.#sides.map((side) => side.metrics()));
      return mergeMetrics([front, ...workers.flat()], clock);
    });
    const app = httpApp({
      clock,
      unixTimeAtOriginMs: Date.now() - clock.now(),
      coordinator: this.#coordinator,
      gate: this.#gate,
      metrics,
      limits: {
        engine: this.engine,
        maxPromptTokens: config.context.enableChunkedPrefill ? null : config.context.maxNumTokens,
      },
      maxBodyBytes,
      bodies: new BodyBudget(Math.max(BODIES_BYTES, BODIES_AT_LEAST * maxBodyBytes)),
      stallLimitMs,
      logger: log.logger,
      onError: log.error,
      health: () => this.#health(),
      allMetrics: () => all.get(),
    });
    return HttpListener.open({
      ...options,
      app,
      hostname: config.hostname,
      port: config.port,
      onAnswer: (route, status) => metrics.responded(route, status),
      onRefused: (error) => logRefusal(log.logger, NO_ROUTE, error, null),
    });
  }

  #health() {
    const [context, generation] = [this.#coordinator.contextServers, this.#coordinator.generationServers].map((pool) =>
      pool.status().map(({ name, phase, reason, liveRequests }): WorkerStatus => {
        const link = this.#linkNamed(name);
        return { name, phase, reason, liveRequests, pid: link?.pid ?? 0 };
      }),
    ) as [WorkerStatus[], WorkerStatus[]];
    const isUp = (side: readonly WorkerStatus[]): boolean => side.some(({ phase }) => phase === 'ready');
    return { isReady: isUp(context) && isUp(generation), isDraining: this.#gate.isClosed, context, generation };
  }

  #linkNamed(name: string): WorkerLink | undefined {
    return this.#sides.flatMap(({ links }) => links).find((link) => link.name === name);
  }
}

function checkSameEngine(context: string, generation: string): void {
  if (context === generation) return;
  const message = `the engines of both sides must be the same: context has ${context}; generation has ${generation}`;
  throw new ConfigError(message, { details: { problems: [{ setting: 'engine', message }] } });
}
