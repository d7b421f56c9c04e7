import { Counter, Histogram, Registry } from 'prom-client';
import { expect, it } from 'vitest';
import { registryText } from '../../../src/observe/registry-text.js';
import { type LabelledMetrics, mergeMetrics } from '../../../src/serve/front/merge-metrics.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

const merged = (sources: readonly LabelledMetrics[]): Promise<string> => mergeMetrics(sources, new FakeClock());

it('labels each sample and keeps the samples of a name together under one description', async () => {
  const text = '# HELP a What a is\n# TYPE a gauge\na 1\na{x="y"} 2\n# HELP b B\n# TYPE b counter\nb 3\n';
  expect(
    await merged([
      { labels: { worker: 'w0' }, text },
      { labels: { worker: 'w1', role: 'context' }, text },
    ]),
  ).toBe(
    [
      '# HELP a What a is',
      '# TYPE a gauge',
      'a{worker="w0"} 1',
      'a{x="y",worker="w0"} 2',
      'a{worker="w1",role="context"} 1',
      'a{x="y",worker="w1",role="context"} 2',
      '# HELP b B',
      '# TYPE b counter',
      'b{worker="w0"} 3',
      'b{worker="w1",role="context"} 3',
      '',
    ].join('\n'),
  );
});

it('gives no label twice', async () => {
  const text = 'a{role="x"} 1\na{l=",role=\\"",b="c"} 2\n';
  expect(await merged([{ labels: { worker: 'w', role: 'y' }, text }])).toBe(
    'a{role="x",worker="w"} 1\na{l=",role=\\"",b="c",worker="w",role="y"} 2\n',
  );
});

it('leaves out what is no line of the format, and what has no samples', async () => {
  const text = 'a 1\nnot a metric at all\n<html>\na{unclosed 3\n# a comment\n# HELP c C\n# TYPE c gauge\n\n';
  expect(await merged([{ labels: { worker: 'w' }, text }])).toBe('a{worker="w"} 1\n');
});

it('merges what prom-client writes', async () => {
  const registry = new Registry();
  new Counter({ name: 'c_total', help: 'c', labelNames: ['l'], registers: [registry] }).inc({ l: 'a"} b\n' }, 2);
  const histogram = new Histogram({ name: 'h', help: 'h', buckets: [1], registers: [registry] });
  histogram.observe(0.5);
  const text = await registry.metrics();
  const both = await merged([
    { labels: { worker: 'w0' }, text },
    { labels: { worker: 'w1' }, text },
  ]);
  const lines = both.split('\n');
  expect(lines.filter((line) => line.startsWith('#'))).toEqual(text.split('\n').filter((line) => line.startsWith('#')));
  expect(lines.filter((line) => line.startsWith('h_bucket'))).toEqual([
    'h_bucket{le="1",worker="w0"} 1',
    'h_bucket{le="+Inf",worker="w0"} 1',
    'h_bucket{le="1",worker="w1"} 1',
    'h_bucket{le="+Inf",worker="w1"} 1',
  ]);
  expect(lines).toContain('c_total{l="a\\"} b\\n",worker="w1"} 2');
});

/** Time passes with each look at the clock, as when the work between two looks takes long. */
function slowClock() {
  let [now, turns] = [0, 0];
  const clock = Object.assign(new FakeClock(), {
    now: () => ++now,
    nextTurn: async () => {
      turns += 1;
    },
  });
  return { clock, turns: () => turns };
}

it('merges thousands of lines in turns of the event loop', async () => {
  const text = Array.from({ length: 3200 }, (_, index) => `a{i="${index}"} 1\n`).join('');
  const { clock, turns } = slowClock();
  const lines = (await mergeMetrics([{ labels: { worker: 'w' }, text }], clock)).split('\n');
  expect([lines.length, lines[3199]]).toEqual([3201, 'a{i="3199",worker="w"} 1']);
  expect(turns()).toBe(100);
});

it('writes a registry as prom-client does, in turns of the event loop', async () => {
  const registry = new Registry();
  for (let index = 0; index < 20; index++)
    new Counter({ name: `c${index}_total`, help: 'c', labelNames: ['l'], registers: [registry] }).inc({ l: 'a"' });
  new Histogram({ name: 'h', help: 'h', buckets: [1], registers: [registry] }).observe(0.5);
  const { clock, turns } = slowClock();
  expect(await registryText(registry, clock)).toBe(await registry.metrics());
  expect(turns()).toBe(21);
});
