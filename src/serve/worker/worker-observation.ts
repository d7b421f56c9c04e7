import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Clock } from '../../clock.js';
import type { CacheTransceiverConfig } from '../../config/index.js';
import { KvLogging } from '../../observe/kv-logging.js';
import type { Logger } from '../../observe/logger.js';
import { Observation } from '../../observe/observation.js';
import { registryText } from '../../observe/registry-text.js';

/** How a worker shows itself. */
export interface WorkerObservationOptions {
  /** Its settings `metrics` and `tracing`. */
  readonly config: Pick<CacheTransceiverConfig, 'metrics' | 'tracing'>;
  readonly clock: Clock;
  readonly logger: Logger | null;
}

/**
 * Role: metrics, traces and logs of one worker process: one registry, in which the ranks are summed, and log lines that name the rank.
 * Ownership: `close` takes every listener away.
 */
export class WorkerObservation {
  /** Of all ranks: metrics and traces. */
  readonly shared: Observation;
  readonly #registry = new Registry();
  readonly #clock: Clock;
  readonly #logger: Logger | null;

  constructor({ config, clock, logger }: WorkerObservationOptions) {
    this.#clock = clock;
    this.#logger = logger;
    collectDefaultMetrics({ register: this.#registry });
    this.shared = new Observation({ config, registry: this.#registry, clock });
  }

  /** Null: nothing is logged. */
  loggingOf(rank: number): KvLogging | null {
    return this.#logger === null ? null : new KvLogging({ logger: this.#logger.child({ rank }), clock: this.#clock });
  }

  /** Asked at each scrape. */
  showFronts(host: { readonly sessionCount: number; readonly internalErrors: number }): void {
    this.#gauge('kvt_worker_fronts', 'Front processes that this worker serves', () => host.sessionCount);
    const help = 'Internal errors at the links to fronts; each is in the log';
    this.#gauge('kvt_worker_link_errors', help, () => host.internalErrors);
  }

  #gauge(name: string, help: string, read: () => number): void {
    new Gauge({
      name,
      help,
      registers: [this.#registry],
      collect() {
        this.set(read());
      },
    });
  }

  /** Text of the Prometheus format. */
  metrics(): Promise<string> {
    // Only where the process was started with --expose-gc: figures of the heap then show what is in use.
    globalThis.gc?.();
    return registryText(this.#registry, this.#clock);
  }

  close(): void {
    this.shared.close();
  }
}
