import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { LOG_LINES } from '../../src/observe/log-lines.js';
import { METRICS, type MetricDefinition } from '../../src/observe/metric-catalogue.js';
import { ATTRIBUTES, SPAN_EVENTS, SPANS } from '../../src/observe/span-names.js';
import { FrontMetrics } from '../../src/serve/front/front-metrics.js';
import { SERVE_LOG_LINES } from '../../src/serve/serve-log.js';
import { WorkerObservation } from '../../src/serve/worker/worker-observation.js';
import { FakeClock } from '../sim-lite/fake-clock.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (file: string): string => readFileSync(`${ROOT}${file}`, 'utf8');
const document = read('docs/observability.md');
const definitions: readonly MetricDefinition[] = Object.values(METRICS);

/** The rows of a section's tables, each as its cells. */
function rows(heading: string): string[][] {
  const level = /^#+/.exec(heading)?.[0].length ?? 0;
  const from = document.indexOf(`\n${heading}\n`);
  expect(from, heading).toBeGreaterThan(0);
  const rest = document.slice(from + heading.length + 2);
  const end = rest.search(new RegExp(`^#{1,${level}} `, 'm'));
  return [...rest.slice(0, end < 0 ? undefined : end).matchAll(/^\| (`.*) \|$/gm)].map((match) =>
    (match[1] ?? '').split(' | '),
  );
}

/** Of a cell of labels, each with its values behind it. */
const labelNames = (cell: string | undefined): string[] =>
  (cell ?? '').split('; ').flatMap((one) => code(one).slice(0, 1));

interface ServerMetric {
  readonly name: string;
  readonly help: string;
  readonly type: string;
  readonly labels: readonly string[];
}

/** As the front and its workers show them. */
async function serverMetrics(): Promise<readonly ServerMetric[]> {
  const front = new FrontMetrics({
    clock: new FakeClock(),
    live: () => 0,
    queued: () => 0,
    linkErrors: () => 0,
    workers: () => [{ name: 'a', isReady: true, starts: 1 }],
  });
  const worker = new WorkerObservation({
    config: { metrics: false, tracing: false },
    clock: new FakeClock(),
    logger: null,
  });
  worker.showFronts({ sessionCount: 1, internalErrors: 0 });
  const text = (await front.metrics()) + (await worker.metrics());
  return [...text.matchAll(/^# HELP (kvt_\S+) (.*)\n# TYPE \S+ (\w+)$/gm)].map(
    ([, name = '', help = '', type = '']) => {
      const metric = front.registry.getSingleMetric(name) as { readonly labelNames?: readonly string[] } | undefined;
      return { name, help, type, labels: metric?.labelNames ?? [] };
    },
  );
}

const code = (cell: string | undefined): string[] => [...(cell ?? '').matchAll(/`([^`]+)`/g)].map((m) => m[1] ?? '');

describe('docs/observability.md', () => {
  it('has every metric with its type, its labels and their values, and no other', () => {
    const listed = ['### Transceiver', '### Executor', '### Coordinator'].flatMap(rows);
    expect(listed.map(([name]) => code(name)[0]).toSorted()).toEqual(definitions.map(({ name }) => name).toSorted());
    for (const [name, type, labels, meaning] of listed) {
      const definition = definitions.find((one) => one.name === code(name)[0]);
      expect(type).toBe(definition?.type);
      expect(meaning).toBe(definition?.help);
      for (const [label, values] of Object.entries(definition?.labels ?? {})) {
        expect(code(labels)).toContain(label);
        if (values !== null && values.length <= 8) for (const value of values) expect(code(labels)).toContain(value);
      }
    }
    const mentioned = [...document.matchAll(/kv_transceiver_[a-z_]+/g)].map(([name]) => name);
    for (const name of mentioned) expect(definitions.map((one) => one.name)).toContain(name);
  });

  it('has every metric of the server, and no other', async () => {
    const has = (await serverMetrics()).map(({ name, help, type }) => [name, help, type]);
    const listed = rows('### Server').map(([name, type, , meaning]) => [code(name)[0], meaning, type]);
    expect(listed.toSorted()).toEqual(has.toSorted());
    const mentioned = [...`${document}${read('docs/serve.md')}`.matchAll(/kvt_[a-z_]*[a-z]/g)].map(([name]) => name);
    for (const name of mentioned) expect([...has.map(([one]) => one), 'kvt_serve'], name).toContain(name);
    const documented = rows('### Server').map(([name, , labels]) => [code(name)[0], labelNames(labels)]);
    expect(documented.toSorted()).toEqual((await serverMetrics()).map((one) => [one.name, one.labels]).toSorted());
  });

  it('has every name that the code gives a metric, and so has the board', () => {
    const files = readdirSync(`${ROOT}src`, { recursive: true, encoding: 'utf8' }).filter((file) =>
      file.endsWith('.ts'),
    );
    const registered = files.flatMap((file) =>
      [...read(`src/${file}`).matchAll(/['"`]((?:kvt|kv_transceiver)_[a-z_]+)['"`]/g)].map((match) => match[1] ?? ''),
    );
    expect(registered.length).toBeGreaterThan(definitions.length);
    const listed = [...document.matchAll(/^\| `((?:kvt|kv_transceiver)_[a-z_]+)` \|/gm)].map((match) => match[1] ?? '');
    const asked = [...read('docs/grafana/kv-transceiver.json').matchAll(/(?:kvt|kv_transceiver)_[a-z_]+/g)].map(
      ([series]) => listed.find((name) => name === series.replace(/_bucket$/, '')) ?? series,
    );
    // Among them those that somebody asks for, as a series of a histogram.
    const names = new Set(registered.map((name) => (listed.includes(name) ? name : name.replace(/_count$/, ''))));
    expect([...names].toSorted()).toEqual(listed.toSorted());
    expect([...new Set(asked)].toSorted()).toEqual(listed.toSorted());
  });

  it('has every span, attribute and event', () => {
    expect(
      rows('## Traces')
        .map(([name]) => code(name)[0])
        .toSorted(),
    ).toEqual(Object.values(SPANS).toSorted());
    const named = new Set([...document.matchAll(/kv_transceiver\.[a-z_]+/g)].map(([name]) => name));
    for (const one of ['rid', 'request_id', 'prompt_tokens']) named.add(`kv_transceiver.${one}`);
    const known = [...Object.values(ATTRIBUTES), ...Object.values(SPANS)].filter((one) => one !== ATTRIBUTES.error);
    expect([...named].toSorted()).toEqual(known.toSorted());
    for (const event of [...Object.values(SPAN_EVENTS), ATTRIBUTES.error]) expect(document).toContain(`\`${event}\``);
  });

  it('has every log line', () => {
    expect(
      rows('## Log lines')
        .map(([msg]) => code(msg)[0])
        .toSorted(),
    ).toEqual([...Object.values(LOG_LINES), ...Object.values(SERVE_LOG_LINES)].toSorted());
  });

  it('has every counter of a transceiver', () => {
    const files = readdirSync(`${ROOT}src/session`).map((file) => `src/session/${file}`);
    const added = [...files, 'src/transceiver.ts'].flatMap((file) =>
      [...read(file).matchAll(/ounters\.add\(['`]([a-z_]+)(:?)/g)].map((match) => `${match[1]}${match[2]}`),
    );
    const listed = rows('### Counters').flatMap(([names]) => code(names).map((name) => name.replace(/:.*/, ':')));
    expect(added.length).toBeGreaterThan(20);
    for (const name of new Set(added)) {
      // `early_requests_${kept}` is several.
      const isThere = listed.some((one) => (name.endsWith('_') ? one.startsWith(name) : one === name));
      expect(isThere, name).toBe(true);
    }
    for (const name of listed)
      expect(
        [...added, 'observer_failures', 'internal_errors'].some(
          (one) => one === name || (one.endsWith('_') && name.startsWith(one)),
        ),
        name,
      ).toBe(true);
  });
});

interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
  readonly targets?: readonly { readonly expr: string; readonly refId: string }[];
}

describe('the Grafana board', () => {
  const board = JSON.parse(read('docs/grafana/kv-transceiver.json')) as {
    readonly title: string;
    readonly schemaVersion: number;
    readonly panels: readonly Panel[];
    readonly templating: { readonly list: readonly { readonly name: string }[] };
  };
  const exprs = board.panels.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr));
  const seriesOf = ({ name, type }: Pick<ServerMetric, 'name' | 'type'>): string[] =>
    type === 'histogram' ? [`${name}_bucket`, `${name}_sum`, `${name}_count`] : [name];

  it('asks only for metrics and labels that exist, and for all of them', async () => {
    const all = [
      ...definitions.map(({ name, type, labels }) => ({ name, type: type as string, labels: Object.keys(labels) })),
      ...(await serverMetrics()),
    ];
    const known = new Map(all.flatMap((one) => seriesOf(one).map((series) => [series, one] as const)));
    const asked = new Set<string>();
    for (const expr of exprs) {
      const names = [...expr.matchAll(/(?:kvt|kv_transceiver)_[a-z_]+/g)].map(([name]) => name);
      expect(names, expr).toHaveLength(1);
      const definition = known.get(names[0] ?? '');
      expect(definition, expr).toBeDefined();
      asked.add(definition?.name ?? '');
      const labels = [...(/by \(([^)]*)\)/.exec(expr)?.[1] ?? '').split(', ')].filter((label) => label !== '');
      for (const label of labels) expect([...(definition?.labels ?? []), 'le', 'worker'], expr).toContain(label);
      // A histogram is asked for quantiles, a counter for a rate, a gauge as it is.
      expect(/rate\(|increase\(/.test(expr)).toBe(definition?.type !== 'gauge');
      expect(expr.startsWith('histogram_quantile(')).toBe(definition?.type === 'histogram');
      let depth = 0;
      for (const character of expr) depth += '([{'.includes(character) ? 1 : ')]}'.includes(character) ? -1 : 0;
      expect(depth, expr).toBe(0);
    }
    expect([...asked].toSorted()).toEqual(all.map(({ name }) => name).toSorted());
  });

  it('is a board that Grafana can load: ids, places and queries are each their own', () => {
    expect(board).toMatchObject({ title: 'kv-transceiver', schemaVersion: 39 });
    expect(board.templating.list.map(({ name }) => name)).toEqual(['datasource', 'instance']);
    expect(new Set(board.panels.map(({ id }) => id)).size).toBe(board.panels.length);
    const cells = new Set<string>();
    for (const { gridPos, targets = [], type, title } of board.panels) {
      expect(gridPos.x + gridPos.w).toBeLessThanOrEqual(24);
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x += 1)
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y += 1) {
          expect(cells.has(`${x},${y}`), title).toBe(false);
          cells.add(`${x},${y}`);
        }
      expect(['row', 'timeseries']).toContain(type);
      expect(targets.length > 0).toBe(type === 'timeseries');
      expect(new Set(targets.map(({ refId }) => refId)).size).toBe(targets.length);
    }
  });
});
