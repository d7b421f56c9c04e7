import { SpanStatusCode, type Tracer } from '@opentelemetry/api';
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BasicTracerProvider,
  InMemorySpanExporter,
  ParentBasedSampler,
  SimpleSpanProcessor,
} from '@opentelemetry/sdk-trace-base';
import { describe, expect, it } from 'vitest';
import { KvTracing } from '../../../src/observe/kv-tracing.js';
import { RankWorld } from '../../sim-lite/rank-world.js';
import { TransferPair } from '../../sim-lite/transfer-pair.js';
import { ObservedTransfer } from './observed-transfer.js';

const UNIX_MS = 1_700_000_000_000;

function traced(root = new AlwaysOnSampler()) {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({
    sampler: new ParentBasedSampler({ root }),
    spanProcessors: [new SimpleSpanProcessor(exporter)],
  });
  const started: string[] = [];
  const inner = provider.getTracer('test');
  const tracer: Tracer = {
    startSpan: (name, ...rest) => {
      started.push(name);
      return inner.startSpan(name, ...rest);
    },
    startActiveSpan: inner.startActiveSpan.bind(inner),
  };
  const tracing = new KvTracing({ tracer, unixNow: () => UNIX_MS });
  const spans = (name: string) => exporter.getFinishedSpans().filter((span) => span.name === `kv_transceiver.${name}`);
  return { tracing, spans, started };
}

describe('spans of a transfer', () => {
  it('have the dates of the wall clock and the times of the transfer', async () => {
    const pair = await TransferPair.create();
    const { tracing, spans } = traced();
    tracing.attach({ transceiver: pair.context.transceiver });
    const transfer = new ObservedTransfer(pair);
    await transfer.whole();
    const [send] = spans('send');
    const timings = pair.context.settled[0]?.timings;
    const lengthMs = (send?.duration[0] ?? 0) * 1000 + (send?.duration[1] ?? 0) / 1e6;
    expect(lengthMs).toBeCloseTo((timings?.settledAtMs ?? 0) - (timings?.startedAtMs ?? 0), 3);
    expect(Math.abs((send?.startTime[0] ?? 0) - UNIX_MS / 1000)).toBeLessThan(10);
    const slices = spans('slice');
    expect(slices.map(({ attributes }) => attributes)).toEqual(
      [0, 1].map((chunk) => ({
        'kv_transceiver.chunk': chunk,
        'kv_transceiver.is_last': chunk === 1,
        'kv_transceiver.begin_block': 2 * chunk,
        'kv_transceiver.end_block': 2 * chunk + 2,
        'kv_transceiver.bytes': (timings?.bytesDone ?? 0) / 2,
        'kv_transceiver.peer': expect.stringContaining('generation rank 0'),
        'kv_transceiver.path': 'host',
        'kv_transceiver.outcome': 'transferred',
      })),
    );
    for (const { events } of slices) expect(events.map(({ name }) => name)).toEqual(['posted']);
  });

  it('a slice that fails is an error, and so is its transfer at both ends, with the class that the writer named', async () => {
    const pair = await TransferPair.create();
    const [context, generation] = [traced(), traced()];
    context.tracing.attach({ transceiver: pair.context.transceiver });
    generation.tracing.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(100);
    pair.context.agent.scripts.push('fail');
    transfer.chunk(0, 8);
    await pair.run(300);
    const [slice] = context.spans('slice');
    expect(slice?.status).toEqual({ code: SpanStatusCode.ERROR });
    expect(slice?.attributes).toMatchObject({
      'kv_transceiver.outcome': 'failed',
      'kv_transceiver.bytes': 0,
      'error.type': 'ERR_KVT_TRANSPORT',
    });
    const [send] = context.spans('send');
    expect(send?.status).toMatchObject({
      code: SpanStatusCode.ERROR,
      message: expect.stringContaining('scripted failure'),
    });
    expect(send?.attributes['error.type']).toBe('ERR_KVT_TRANSPORT');
    const [receive] = generation.spans('receive');
    expect(receive?.attributes).toMatchObject({
      'error.type': 'ERR_KVT_TRANSPORT',
      'kv_transceiver.remote_error': 'ERR_KVT_TRANSPORT',
      'kv_transceiver.outcome': 'failed',
      'kv_transceiver.salvageable_tokens': 0,
    });
    expect(receive?.spanContext().traceId).toBe(send?.spanContext().traceId);
  });

  it('a cancel is an ordinary end', async () => {
    const pair = await TransferPair.create();
    const { tracing, spans } = traced();
    tracing.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(50);
    pair.generation.transceiver.cancelRequest(transfer.received, 'its user left');
    await pair.run(50);
    const [receive] = spans('receive');
    expect(receive?.status.code).toBe(SpanStatusCode.UNSET);
    expect(receive?.attributes['kv_transceiver.outcome']).toBe('cancelled');
    expect(receive?.attributes).not.toHaveProperty('error.type');
  });

  it('taken away, they end what is open, once, and hear nothing more', async () => {
    const pair = await TransferPair.create();
    const { tracing, spans } = traced();
    const detach = tracing.attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(50);
    expect(spans('receive')).toEqual([]);
    detach();
    expect(spans('receive')).toHaveLength(1);
    transfer.chunk(0, 16);
    await pair.run(300);
    expect(pair.generation.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
    expect(spans('receive')).toHaveLength(1);
  });

  it('that is not sampled: one span that is not recorded at each end, and none for a slice', async () => {
    const pair = await TransferPair.create();
    const { tracing, spans, started } = traced(new AlwaysOffSampler());
    for (const { transceiver } of [pair.context, pair.generation]) tracing.attach({ transceiver });
    await new ObservedTransfer(pair).whole();
    expect(started).toEqual(['kv_transceiver.receive', 'kv_transceiver.send']);
    expect(spans('send')).toEqual([]);
  });
});

it('several receivers of one request: the first is the parent, the others are links', async () => {
  const world = new RankWorld();
  const context = await world.instance('context', { tpSize: 1 });
  const generation = await world.instance('generation', { tpSize: 2 });
  const { tracing, spans } = traced();
  for (const { transceiver } of [...context, ...generation]) tracing.attach({ transceiver });
  const endpoint = context[0]?.transceiver.endpoint ?? '';
  const sent = world.place(context, 'context', { rid: 1n << 42n });
  const received = world.place(generation, 'generation', { rid: 1n << 42n, endpoint });
  world.ask(received);
  await world.run(200);
  world.chunk(sent, 0, 16);
  await world.run(400);
  const receives = spans('receive');
  const [send] = spans('send');
  expect(receives).toHaveLength(2);
  const ids = receives.map((span) => span.spanContext().spanId);
  const named = [send?.parentSpanContext?.spanId, ...(send?.links.map(({ context: { spanId } }) => spanId) ?? [])];
  expect(named.toSorted()).toEqual(ids.toSorted());
  // Both receivers got the slice.
  expect(spans('slice').map(({ attributes }) => attributes['kv_transceiver.chunk'])).toEqual([0, 0]);
});
