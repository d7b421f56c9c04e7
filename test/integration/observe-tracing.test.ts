import { context as otelContext, ROOT_CONTEXT, SpanStatusCode, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import {
  AlwaysOffSampler,
  BasicTracerProvider,
  InMemorySpanExporter,
  ParentBasedSampler,
  type ReadableSpan,
  SimpleSpanProcessor,
  TraceIdRatioBasedSampler,
} from '@opentelemetry/sdk-trace-base';
import { afterEach, describe, expect, it } from 'vitest';
import type { ScheduleStyle } from '../../src/executor/request.js';
import { Observation } from '../../src/observe/observation.js';
import { HANG_LIMIT_MS } from '../support/deadline.js';
import { CHUNK_TOKENS, type ObservedPair, openObservedPair, tinyPrompt } from './observe/observed-pair.js';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const CALLER = '00f067aa0ba902b7';
const PROMPT_TOKENS = 70;

/** A provider of its own for each process that is played here. */
function provider(sampler = new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(1) })) {
  const exporter = new InMemorySpanExporter();
  const tracers = new BasicTracerProvider({ sampler, spanProcessors: [new SimpleSpanProcessor(exporter)] });
  const observation = new Observation({
    config: { metrics: false, tracing: true },
    tracer: tracers.getTracer('test'),
  });
  return { exporter, observation };
}

let pair: ObservedPair | null = null;
afterEach(async () => {
  await pair?.close();
  pair = null;
});

const named = (spans: readonly ReadableSpan[], name: string): ReadableSpan[] =>
  spans.filter((span) => span.name === `kv_transceiver.${name}`);
const idOf = (span: ReadableSpan | undefined): string | undefined => span?.spanContext().spanId;
const ms = ([seconds, nanos]: readonly [number, number]): number => seconds * 1000 + nanos / 1e6;

describe('one trace over coordinator, context and generation server', () => {
  it.each<ScheduleStyle>(['generation_first', 'context_first'])('%s', async (style) => {
    const [context, generation, coordinator] = [provider(), provider(), provider()];
    pair = await openObservedPair(style, {
      context: context.observation,
      generation: generation.observation,
      coordinator: coordinator.observation,
    });
    const result = await pair.coordinator.submit({
      promptTokens: tinyPrompt(PROMPT_TOKENS),
      maxTokens: 3,
      traceparent: `00-${TRACE}-${CALLER}-01`,
    }).result;
    expect(result).toMatchObject({ outcome: 'completed', error: null });
    await pair.close();
    pair = null;

    const [atContext, atGeneration, atCoordinator] = [context, generation, coordinator].map(({ exporter }) =>
      exporter.getFinishedSpans(),
    ) as [ReadableSpan[], ReadableSpan[], ReadableSpan[]];
    const all = [...atContext, ...atGeneration, ...atCoordinator];
    expect(new Set(all.map((span) => span.spanContext().traceId))).toEqual(new Set([TRACE]));

    const [root] = named(atCoordinator, 'request');
    const [contextSpan] = named(atContext, 'context');
    const [send] = named(atContext, 'send');
    const [generationSpan] = named(atGeneration, 'generation');
    const [receive] = named(atGeneration, 'receive');
    const slices = named(atContext, 'slice');
    expect(all).toHaveLength(5 + slices.length);
    expect(root?.parentSpanContext?.spanId).toBe(CALLER);
    for (const child of [contextSpan, generationSpan]) expect(child?.parentSpanContext?.spanId).toBe(idOf(root));
    expect(send?.parentSpanContext?.spanId).toBe(idOf(contextSpan));
    expect(receive?.parentSpanContext?.spanId).toBe(idOf(generationSpan));
    for (const slice of slices) expect(slice.parentSpanContext?.spanId).toBe(idOf(send));
    // What the wire carried: the receive that asked.
    expect(send?.links.map(({ context: { spanId } }) => spanId)).toEqual([idOf(receive)]);

    const pipelined = style === 'generation_first';
    expect(slices).toHaveLength(pipelined ? Math.ceil(PROMPT_TOKENS / CHUNK_TOKENS) : 1);
    expect(slices.map(({ attributes }) => attributes['kv_transceiver.chunk'])).toEqual(slices.map((_, chunk) => chunk));
    expect(slices.map(({ attributes }) => attributes['kv_transceiver.path'])).toEqual(slices.map(() => 'host'));
    const sent = slices.reduce((sum, { attributes }) => sum + Number(attributes['kv_transceiver.bytes']), 0);
    expect(sent).toBeGreaterThan(0);
    expect(send?.attributes).toMatchObject({
      'kv_transceiver.rid': result.id.toString(),
      'kv_transceiver.prompt_tokens': PROMPT_TOKENS,
      'kv_transceiver.outcome': 'completed',
      'kv_transceiver.bytes': sent,
      'kv_transceiver.pipelined': pipelined,
    });
    expect(receive?.attributes).toMatchObject({ 'kv_transceiver.bytes': sent, 'kv_transceiver.outcome': 'completed' });
    expect(root?.attributes).toMatchObject({
      'kv_transceiver.rid': result.id.toString(),
      'kv_transceiver.output_tokens': 3,
      'kv_transceiver.attempts': 1,
    });
    // Children lie inside their parents, and all of it now.
    for (const [outer, inner] of [[contextSpan, send], ...slices.map((slice) => [send, slice])]) {
      expect(ms(inner?.startTime ?? [0, 0])).toBeGreaterThanOrEqual(ms(outer?.startTime ?? [0, 0]));
    }
    expect(Math.abs(ms(root?.endTime ?? [0, 0]) - Date.now())).toBeLessThan(60_000);
    expect(generationSpan?.events.map(({ name }) => name)).toEqual(['first token']);
    expect(contextSpan?.events.map(({ name }) => name)).toEqual(['prefill started', 'prefill done']);
  });
});

it('a request without a trace context of its own is a child of the span that is active where it is submitted', async () => {
  const manager = new AsyncLocalStorageContextManager().enable();
  expect(otelContext.setGlobalContextManager(manager)).toBe(true);
  try {
    const coordinator = provider();
    pair = await openObservedPair('generation_first', { coordinator: coordinator.observation });
    const active = trace.setSpanContext(ROOT_CONTEXT, { traceId: TRACE, spanId: CALLER, traceFlags: 1 });
    const call = otelContext.with(active, () =>
      pair?.coordinator.submit({ promptTokens: tinyPrompt(20), maxTokens: 2 }),
    );
    expect((await call?.result)?.outcome).toBe('completed');
    const [root] = named(coordinator.exporter.getFinishedSpans(), 'request');
    expect(root?.spanContext().traceId).toBe(TRACE);
    expect(root?.parentSpanContext?.spanId).toBe(CALLER);
  } finally {
    otelContext.disable();
    manager.disable();
  }
});

describe('without a coordinator', () => {
  it('the context server joins the trace of the receive that asks for the pages', async () => {
    const [context, generation] = [provider(), provider()];
    pair = await openObservedPair('generation_first', {
      context: context.observation,
      generation: generation.observation,
    });
    const { outcome } = await pair.coordinator.submit({ promptTokens: tinyPrompt(40), maxTokens: 2 }).result;
    expect(outcome).toBe('completed');
    await pair.close();
    pair = null;
    const [send] = named(context.exporter.getFinishedSpans(), 'send');
    const [contextSpan] = named(context.exporter.getFinishedSpans(), 'context');
    const [receive] = named(generation.exporter.getFinishedSpans(), 'receive');
    expect(contextSpan?.parentSpanContext?.spanId).toBe(idOf(receive));
    expect(contextSpan?.parentSpanContext?.isRemote).toBe(true);
    expect(send?.spanContext().traceId).toBe(receive?.spanContext().traceId);
    expect(send?.links).toEqual([]);
  });

  it('a traceparent that is not valid is dropped and counted, and the request gets a trace of its own', async () => {
    const [context, generation] = [provider(), provider()];
    pair = await openObservedPair('generation_first', {
      context: context.observation,
      generation: generation.observation,
    });
    const traceparent = `00-${'0'.repeat(32)}-${CALLER}-01`;
    const { outcome } = await pair.coordinator.submit({ promptTokens: tinyPrompt(20), maxTokens: 2, traceparent })
      .result;
    expect(outcome).toBe('completed');
    // Longer than the wire allows: no reason to fail the request either.
    const long = await pair.coordinator.submit({
      promptTokens: tinyPrompt(20, 2),
      maxTokens: 2,
      traceparent: 'x'.repeat(5000),
    }).result;
    expect(long.outcome).toBe('completed');
    expect(pair.generation.transceiver.stats().counters).toMatchObject({ 'bad_traceparent:request': 2 });
    expect(pair.context.transceiver.stats().counters).not.toHaveProperty('bad_traceparent:wire');
    const receives = named(generation.exporter.getFinishedSpans(), 'receive');
    expect(receives).toHaveLength(2);
    for (const receive of receives) expect(receive.spanContext().traceId).not.toMatch(/^0+$/);
  });
});

describe('what does not end well', () => {
  it('a failed transfer is an error at both ends, with its class', async () => {
    const [context, generation] = [provider(), provider()];
    pair = await openObservedPair('generation_first', {
      context: context.observation,
      generation: generation.observation,
    });
    const { promptTokens } = { promptTokens: tinyPrompt(60) };
    const done = new Promise<void>((resolve) => {
      pair?.generation.executor.observe({ onFinished: () => resolve() });
    });
    // The context server goes away before it has the request.
    pair.generation.server.submit(
      {
        promptTokens,
        maxTokens: 2,
        transferPolicy: null,
        params: {
          requestType: 'generation_only',
          scheduleStyle: 'generation_first',
          ctxRequestId: null,
          disaggRequestId: 1n << 45n,
          ctxDpRank: null,
          ctxInfoEndpoint: pair.context.endpoint,
          firstGenTokens: [],
          draftTokens: [],
          traceparent: `00-${TRACE}-${CALLER}-01`,
        },
      },
      {},
    );
    await expect.poll(() => pair?.context.transceiver.stats().earlyRequests, { timeout: HANG_LIMIT_MS }).toBe(1);
    await pair.context.transceiver.close(1000);
    await done;
    // What it may still write is waited for, but not by this test.
    await pair.close(100);
    pair = null;
    const spans = generation.exporter.getFinishedSpans();
    for (const name of ['receive', 'generation']) {
      const [span] = named(spans, name);
      expect(span?.status.code).toBe(SpanStatusCode.ERROR);
      expect(span?.attributes['error.type']).toMatch(/^ERR_KVT_(?:PEER_LOST|TRANSPORT)$/);
      expect(span?.attributes['kv_transceiver.outcome']).toBe('failed');
      expect(span?.spanContext().traceId).toBe(TRACE);
    }
    expect(context.exporter.getFinishedSpans()).toEqual([]);
  });
});

describe('sampled out', () => {
  it.each([
    ['by the caller', `00-${TRACE}-${CALLER}-00`, undefined],
    ['by the coordinator', '', new AlwaysOffSampler()],
  ])('%s: no span anywhere, also not on the other server', async (_, traceparent, sampler) => {
    const [context, generation] = [provider(), provider()];
    const coordinator = provider(sampler === undefined ? undefined : new ParentBasedSampler({ root: sampler }));
    pair = await openObservedPair('generation_first', {
      context: context.observation,
      generation: generation.observation,
      coordinator: coordinator.observation,
    });
    const { outcome } = await pair.coordinator.submit({ promptTokens: tinyPrompt(50), maxTokens: 2, traceparent })
      .result;
    expect(outcome).toBe('completed');
    await pair.close();
    pair = null;
    for (const { exporter } of [context, generation, coordinator]) expect(exporter.getFinishedSpans()).toEqual([]);
  });
});
