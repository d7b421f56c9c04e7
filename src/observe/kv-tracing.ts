import {
  type Attributes,
  type Context,
  type Link,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api';
import { unixTimeMs } from '../clock.js';
import type { CoordinatorSubmission } from '../coordinator/coordinator-observer.js';
import type { ExecutorObserver } from '../executor/executor-events.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import { roleOf } from '../executor/request-states.js';
import { PACKAGE_VERSION } from '../package-version.js';
import type { Settled } from '../session/cache-transceiver.js';
import type { SliceEnd, TransferObserver } from '../session/transfer-observer.js';
import { parseTraceparent } from '../wire/trace-context.js';
import { coordinatorSpans } from './coordinator-spans.js';
import { type Observed, once } from './observed.js';
import { RequestTrace } from './request-trace.js';
import { fail } from './span-failure.js';
import { linkTo, remote, traceparentOf } from './span-identity.js';
import { ATTRIBUTES, SPAN_EVENTS, SPANS } from './span-names.js';
import { exposedTailMs } from './transfer-times.js';
import { WallTime } from './wall-time.js';

/**
 * Role: OpenTelemetry spans of requests, transfers and slices, over the trace context that requests and REQUEST_DATA carry.
 * Why: only the API is used: without a tracer provider, or for a trace that is not sampled, no slice makes a span or an attribute.
 * Ordering: a coordinator's span is the parent of both servers'. Without one the generation server's receive is the parent of the context
 *   server's spans; with one it is linked.
 *
 * @example
 * const tracing = new KvTracing();
 * const detach = tracing.attach({ transceiver, executor });
 */
export class KvTracing {
  readonly #tracer: Tracer;
  readonly #wall: WallTime;
  /** By the request of one server, whose transceiver and executor may be attached one after the other. */
  readonly #requests = new Map<LlmRequest, RequestTrace>();

  /**
   * @param options.tracer default: of the globally registered provider
   * @param options.unixNow wall-clock ms since 1970
   */
  constructor(options: { readonly tracer?: Tracer; readonly unixNow?: () => number } = {}) {
    this.#tracer = options.tracer ?? trace.getTracer('kv-transceiver', PACKAGE_VERSION);
    this.#wall = new WallTime(options.unixNow ?? unixTimeMs);
  }

  /** @returns takes the listeners away again and ends what is open; idempotent */
  attach({ transceiver, executor, coordinator }: Observed): () => void {
    const attachment = {};
    const submissions = new Map<CoordinatorSubmission, Span>();
    return once([
      transceiver?.observe(this.#ofTransceiver(attachment)) ?? (() => {}),
      executor?.observe(this.#ofExecutor(attachment)) ?? (() => {}),
      coordinator?.observe(coordinatorSpans(this.#tracer, this.#wall, submissions)) ?? (() => {}),
      () => {
        this.#abandon(attachment);
        for (const span of submissions.values()) span.end();
        submissions.clear();
      },
    ]);
  }

  #ofTransceiver(attachment: object): TransferObserver {
    const requests = this.#requests;
    return {
      onStarted: ({ request, rid, side, atMs, trace: own }) => {
        this.#wall.sync(atMs);
        const state = traceOf(requests, request);
        state.own = own;
        state.rid = rid;
        state.transferAtMs = atMs;
        state.transferBy = attachment;
        // What the wire brings decides for a context request that brings nothing itself.
        if (side === 'context' && own === null) return undefined;
        this.#begin(request, state);
        return state.transfer === null ? undefined : traceparentOf(state.transfer);
      },
      onReceiverAsked: ({ request, trace: asked }) => {
        const state = requests.get(request);
        if (state === undefined) return;
        const isFirst = state.asked === null;
        state.asked ??= asked;
        if (state.transfer === null) this.#begin(request, state);
        else if (asked !== null && (state.own !== null || !isFirst) && state.transfer.isRecording())
          state.transfer.addLink(linkTo(asked));
      },
      onPeersArrived: (request, _, waitedMs) => {
        const state = requests.get(request);
        if (state?.transfer?.isRecording() !== true || state.transferAtMs === null) return;
        state.transfer.addEvent(SPAN_EVENTS.peersArrived, this.#wall.of(state.transferAtMs + waitedMs));
      },
      onSliceEnded: (slice) => {
        const state = requests.get(slice.request);
        // A span that is not recorded has no children worth making.
        if (state?.transfer?.isRecording() === true) this.#slice(state.transfer, state, slice);
      },
      onSettled: (settled) => this.#settled(settled),
    };
  }

  #ofExecutor(attachment: object): ExecutorObserver {
    const requests = this.#requests;
    return {
      onSubmitted: (request, atMs) => {
        this.#wall.sync(atMs);
        const state = traceOf(requests, request);
        state.submittedAtMs = atMs;
        state.submittedBy = attachment;
        state.own = parseTraceparent(request.disagg?.traceparent ?? '');
        if (roleOf(request) !== 'context' || state.own !== null) this.#begin(request, state);
      },
      onPrefillStarted: (request, atMs) => {
        const state = requests.get(request);
        if (state !== undefined) state.prefillStartedAtMs = atMs;
      },
      onPrefillDone: (request, atMs) => {
        const state = requests.get(request);
        if (state !== undefined) state.prefillDoneAtMs = atMs;
      },
      onFirstToken: (request, _, atMs) => {
        const state = requests.get(request);
        if (state !== undefined) state.firstTokenAtMs = atMs;
      },
      onFinished: (request, outcome, atMs) => {
        const state = requests.get(request);
        if (state === undefined) return;
        this.#begin(request, state);
        state.hasFinished = true;
        const span = state.request;
        if (span?.isRecording() === true) {
          const events = [
            [SPAN_EVENTS.prefillStarted, state.prefillStartedAtMs],
            [SPAN_EVENTS.prefillDone, state.prefillDoneAtMs],
            [SPAN_EVENTS.firstToken, state.firstTokenAtMs],
          ] as const;
          for (const [name, eventAtMs] of events) if (eventAtMs !== null) span.addEvent(name, this.#wall.of(eventAtMs));
          span.setAttributes({
            [ATTRIBUTES.outcome]: outcome,
            [ATTRIBUTES.reusedTokens]: request.prepopulatedLen,
            [ATTRIBUTES.outputTokens]: request.outputTokens.length,
          });
          if (outcome === 'failed') fail(span, request.error);
        }
        span?.end(this.#wall.of(atMs));
        if (state.isOver) requests.delete(request);
      },
    };
  }

  /** Makes the spans that can be there by now and are not, the outer one first. */
  #begin(request: LlmRequest, state: RequestTrace): void {
    const from = state.own ?? state.asked;
    let parent = from === null ? ROOT_CONTEXT : remote(from);
    const links = state.own !== null && state.asked !== null ? [linkTo(state.asked)] : [];
    const role = roleOf(request);
    if (state.submittedAtMs !== null) {
      state.request ??= this.#start(SPANS[role], state.submittedAtMs, request, [], parent);
      parent = trace.setSpan(ROOT_CONTEXT, state.request);
    }
    if (state.transferAtMs === null || state.transfer !== null) return;
    const name = role === 'context' ? SPANS.send : SPANS.receive;
    state.transfer = this.#start(name, state.transferAtMs, request, links, parent);
    state.transferContext = trace.setSpan(ROOT_CONTEXT, state.transfer);
  }

  #start(name: string, atMs: number, request: LlmRequest, links: Link[], parent: Context): Span {
    const attributes: Attributes = {
      [ATTRIBUTES.rid]: requestKey(request).toString(),
      [ATTRIBUTES.request]: request.id,
      [ATTRIBUTES.promptTokens]: request.promptTokens.length,
    };
    return this.#tracer.startSpan(
      name,
      { kind: SpanKind.INTERNAL, startTime: this.#wall.of(atMs), attributes, links },
      parent,
    );
  }

  #slice(transfer: Span, { transferContext }: RequestTrace, slice: SliceEnd): void {
    // Aux is no slice.
    if (slice.seq === null) return;
    const attributes: Attributes = {
      [ATTRIBUTES.chunk]: slice.seq,
      [ATTRIBUTES.isLast]: slice.isLast,
      [ATTRIBUTES.beginBlock]: slice.beginBlock,
      [ATTRIBUTES.endBlock]: slice.endBlock,
      [ATTRIBUTES.bytes]: slice.bytes,
      [ATTRIBUTES.peer]: slice.peer,
      [ATTRIBUTES.outcome]: slice.status,
      ...(slice.path === null ? {} : { [ATTRIBUTES.path]: slice.path }),
    };
    const span = this.#tracer.startSpan(
      SPANS.slice,
      { kind: SpanKind.INTERNAL, startTime: this.#wall.of(slice.submittedAtMs), attributes },
      transferContext ?? trace.setSpan(ROOT_CONTEXT, transfer),
    );
    if (slice.postedAtMs !== null) span.addEvent(SPAN_EVENTS.posted, this.#wall.of(slice.postedAtMs));
    if (slice.status === 'failed') {
      span.setAttribute(ATTRIBUTES.error, slice.errorCode ?? 'ERR_KVT_INTERNAL');
      span.setStatus({ code: SpanStatusCode.ERROR });
    }
    span.end(this.#wall.of(slice.finishedAtMs ?? slice.postedAtMs ?? slice.submittedAtMs));
  }

  /** Nobody tells any more how these end. */
  #abandon(attachment: object): void {
    for (const [request, state] of this.#requests) {
      if (state.transferBy === attachment && !state.hasSettled) {
        state.hasSettled = true;
        state.transfer?.end();
      }
      if (state.submittedBy === attachment && !state.hasFinished) {
        state.hasFinished = true;
        state.request?.end();
      }
      if (state.isOver) this.#requests.delete(request);
    }
  }

  #settled(settled: Settled): void {
    const requests = this.#requests;
    const { request, outcome, error, timings } = settled;
    const state = requests.get(request);
    if (state === undefined) return;
    this.#begin(request, state);
    state.hasSettled = true;
    const span = state.transfer;
    if (span?.isRecording() === true) {
      const tailMs = exposedTailMs(timings);
      span.setAttributes({
        [ATTRIBUTES.outcome]: outcome,
        [ATTRIBUTES.bytes]: timings.bytesDone,
        [ATTRIBUTES.slices]: timings.slices,
        [ATTRIBUTES.pipelined]: request.transferPolicy.pipelined,
        ...(tailMs === null || outcome !== 'completed' ? {} : { [ATTRIBUTES.exposedTail]: tailMs }),
        ...(outcome === 'completed' ? {} : { [ATTRIBUTES.salvageableTokens]: settled.salvageableTokens }),
      });
      if (outcome === 'failed') fail(span, error);
    }
    span?.end(this.#wall.of(timings.settledAtMs));
    if (state.isOver) requests.delete(request);
  }
}

function traceOf(requests: Map<LlmRequest, RequestTrace>, request: LlmRequest): RequestTrace {
  const known = requests.get(request);
  if (known !== undefined) return known;
  const fresh = new RequestTrace();
  requests.set(request, fresh);
  return fresh;
}
