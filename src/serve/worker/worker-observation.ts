import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { Clock } from '../../clock.js';
import type { CacheTransceiverConfig } from '../../config/index.js';
import { KvLogging } from '../../observe/kv-logging.js';
import type { Logger } from '../../observe/logger.js';
import { Observation } from '../../observe/observation.js';

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

  /** @param count asked at each scrape */
  showFronts(count: () => number): void {
    new Gauge({
      name: 'kvt_worker_fronts',
      help: 'Front processes that this worker serves',
      registers: [this.#registry],
      collect() {
        this.set(count());
      },
    });
  }

  /** Text of the Prometheus format. */
  metrics(): Promise<string> {
    // Only where the process was started with --expose-gc: figures of the heap then show what is in use.
    globalThis.gc?.();
    return this.#registry.metrics();
  }

  close(): void {
    this.shared.close();
  }
}
