import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { HANG_LIMIT_MS, withDeadline } from '../../support/deadline.js';
import { localConfig, Served } from './served.js';

let served: Served;
afterEach(() => served.end());

interface SpanLine {
  readonly name: string;
  readonly traceId: string;
  readonly spanId: string;
  readonly parent: string | null;
}

const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const CALLER = 'b7ad6b7169203331';
const SECRET = 'what nobody shall read';

const linesOf = <T>(text: string): T[] =>
  text
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as T);

describe('serve', () => {
  it('joins the caller’s trace in all its processes, and logs each end of a request with one id', async () => {
    served = new Served();
    const file = join(served.folder, 'spans');
    writeFileSync(file, '');
    const hook = new URL('trace-to-file.mjs', import.meta.url).href;
    served.env = { NODE_OPTIONS: `--import ${hook}`, SPANS_FILE: file };
    const cache_transceiver_config = { backend: 'HOST', tracing: true };
    const front = await served.front(localConfig({ top: { cache_transceiver_config } }), '--log-level', 'info');
    const answer = await front.client.completions.create(
      { model: 'kvt-tiny', prompt: SECRET, max_tokens: 4, temperature: 0, ...{ ignore_eos: true } },
      { headers: { traceparent: `00-${TRACE_ID}-${CALLER}-01` } },
    );
    expect(answer.usage?.completion_tokens).toBe(4);
    front.child.kill('SIGTERM');
    expect(await withDeadline(front.child.exited, HANG_LIMIT_MS, () => 'serve still runs')).toBe(0);

    const spans = linesOf<SpanLine>(readFileSync(file, 'utf8'));
    expect(new Set(spans.map(({ traceId }) => traceId))).toEqual(new Set([TRACE_ID]));
    const named = (name: string): SpanLine => {
      const [span, ...others] = spans.filter((one) => one.name === `kv_transceiver.${name}`);
      expect([span?.name, others], name).toEqual([`kv_transceiver.${name}`, []]);
      return span as SpanLine;
    };
    expect(named('request').parent).toBe(CALLER);
    for (const server of ['context', 'generation']) expect(named(server).parent).toBe(named('request').spanId);
    expect(named('send').parent).toBe(named('context').spanId);
    expect(named('receive').parent).toBe(named('generation').spanId);

    const lines = linesOf<Record<string, unknown>>(front.child.stderr());
    const ends = lines.filter(({ msg }) => String(msg).endsWith('ended'));
    expect(ends.map(({ process, msg }) => `${process}: ${msg}`).toSorted()).toEqual([
      'context-0: request ended',
      'context-0: transfer ended',
      'front: coordinated request ended',
      'front: http request ended',
      'generation-0: request ended',
      'generation-0: transfer ended',
    ]);
    expect(new Set(ends.map(({ rid }) => rid)).size).toBe(1);
    expect(front.child.stderr()).not.toContain(SECRET);
  });

  it('shows a worker’s process alone where the file says `metrics: false`, and logs nothing unless it is asked to', async () => {
    served = new Served();
    const front = await served.front(localConfig({ generation: { cache_transceiver_config: { metrics: false } } }));
    await front.client.completions.create({ model: 'kvt-tiny', prompt: 'a', max_tokens: 2 });
    expect(await front.metric('kv_transceiver_step_seconds_count{worker="context-0"')).toBeGreaterThan(0);
    expect(await front.metric('kv_transceiver_step_seconds_count{worker="generation-0"')).toBeNaN();
    expect(await front.metric('process_open_fds{worker="generation-0"')).toBeGreaterThan(0);
    expect(front.child.stderr()).toBe('');
  });
});
