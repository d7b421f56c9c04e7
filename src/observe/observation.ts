import type { Tracer } from '@opentelemetry/api';
import type { Registry } from 'prom-client';
import { type Clock, SystemClock } from '../clock.js';
import type { CacheTransceiverConfig } from '../config/index.js';
import { KvLogging } from './kv-logging.js';
import { KvMetrics } from './kv-metrics.js';
import { KvTracing } from './kv-tracing.js';
import type { Logger } from './logger.js';
import { type Observed, once } from './observed.js';

/** What an `Observation` is made of. */
export interface ObservationOptions {
  /** Settings `metrics` and `tracing`; both off without. */
  readonly config?: Pick<CacheTransceiverConfig, 'metrics' | 'tracing'>;
  /** Where the metrics go. Default: a new registry. */
  readonly registry?: Registry;
  /** Default: of the globally registered OpenTelemetry provider. */
  readonly tracer?: Tracer;
  /** Default: no log lines. */
  readonly logger?: Logger;
  readonly clock?: Clock;
}

/**
 * Role: metrics, traces and logs of one process, as the configuration asks for them. Null is what is off: it has no listener anywhere.
 *
 * @example
 * const observation = new Observation({ config, logger: createLogger() });
 * const detach = observation.attach({ transceiver, executor });
 * // ... serve observation.metrics?.registry.metrics()
 * detach();
 */
export class Observation {
  readonly metrics: KvMetrics | null;
  readonly tracing: KvTracing | null;
  readonly logging: KvLogging | null;
  readonly #attached = new Set<() => void>();

  /** @throws ConfigError when the registry has metrics of this package already */
  constructor(options: ObservationOptions = {}) {
    const { config, registry, tracer, logger, clock = new SystemClock() } = options;
    this.metrics = config?.metrics === true ? new KvMetrics(registry === undefined ? {} : { registry }) : null;
    this.tracing = config?.tracing === true ? new KvTracing(tracer === undefined ? {} : { tracer }) : null;
    this.logging = logger === undefined ? null : new KvLogging({ logger, clock });
  }

  /** @returns takes all listeners away again; idempotent */
  attach(observed: Observed): () => void {
    const parts = [this.metrics, this.tracing, this.logging].flatMap((part) => part?.attach(observed) ?? []);
    const detach = once([...parts, () => void this.#attached.delete(detach)]);
    this.#attached.add(detach);
    return detach;
  }

  /** Takes away what is attached, and the metrics out of their registry. */
  close(): void {
    for (const detach of [...this.#attached]) detach();
    this.metrics?.close();
  }
}
