import type { Counter, Histogram, Registry } from 'prom-client';
import { ConfigError } from '../errors.js';
import { promClient } from './libraries.js';
import { METRICS, type MetricDefinition, type MetricKey } from './metric-catalogue.js';

type Labels = Readonly<Record<string, string>>;

/** Series that a metric starts with, so that the first event of a kind is a rise and not the birth of a series. */
const MAX_INITIAL_SERIES = 64;

/**
 * Role: the metrics of the catalogue in one registry.
 * Ownership: the registry is the caller's; `remove` takes out what was put in.
 */
export class MetricSet {
  readonly #registry: Registry;
  readonly #histograms = new Map<MetricKey, Histogram>();
  readonly #counters = new Map<MetricKey, Counter>();

  /**
   * @param beforeRead called when a scrape reads a counter
   * @param readGauge the series of a gauge now; those that are not named are gone
   * @throws ConfigError when the registry has these metrics already
   */
  constructor(
    registry: Registry,
    beforeRead: () => void,
    readGauge: (key: MetricKey) => Iterable<readonly [Labels, number]>,
  ) {
    this.#registry = registry;
    const prom = promClient();
    const taken = Object.values(METRICS).find(({ name }) => registry.getSingleMetric(name) !== undefined);
    if (taken !== undefined)
      throw new ConfigError(
        `the registry has ${taken.name} already: attach to the metrics that are there, or close them`,
      );
    for (const [key, definition] of Object.entries(METRICS) as [MetricKey, MetricDefinition][]) {
      const { name, help, type } = definition;
      const common = { name, help, labelNames: Object.keys(definition.labels), registers: [registry] };
      if (type === 'histogram') {
        const histogram = new prom.Histogram({ ...common, buckets: [...(definition.buckets ?? [])] });
        for (const labels of initialSeries(definition)) histogram.zero(labels);
        this.#histograms.set(key, histogram);
      } else if (type === 'counter') {
        const counter = new prom.Counter({ ...common, collect: beforeRead });
        for (const labels of initialSeries(definition)) counter.inc(labels, 0);
        this.#counters.set(key, counter);
      } else {
        new prom.Gauge({
          ...common,
          collect() {
            this.reset();
            for (const [labels, value] of readGauge(key)) this.set(labels, value);
          },
        });
      }
    }
  }

  observe(key: MetricKey, labels: Labels, value: number): void {
    // Clocks of two processes may differ by a little; a time is never negative.
    this.#histograms.get(key)?.observe(labels, Math.max(0, value));
  }

  add(key: MetricKey, labels: Labels, amount = 1): void {
    if (amount > 0) this.#counters.get(key)?.inc(labels, amount);
  }

  remove(): void {
    for (const { name } of Object.values(METRICS)) this.#registry.removeSingleMetric(name);
  }
}

function initialSeries({ labels }: MetricDefinition): Record<string, string>[] {
  let series: Record<string, string>[] = [{}];
  for (const [label, values] of Object.entries(labels)) {
    if (values === null) return [];
    series = series.flatMap((one) => values.map((value) => ({ ...one, [label]: value })));
  }
  return Object.keys(labels).length === 0 || series.length > MAX_INITIAL_SERIES ? [] : series;
}
