import type { Registry } from 'prom-client';
import type { BounceStats } from '../agent/bounce-stats.js';
import type { CoordinatorObserver } from '../coordinator/coordinator-observer.js';
import type { ExecutorObserver } from '../executor/executor-events.js';
import type { LlmRequest } from '../executor/request.js';
import { roleOf } from '../executor/request-states.js';
import { INTERNAL_ERRORS } from '../session/callback-guard.js';
import type { TransceiverStats } from '../session/transceiver-stats.js';
import type { TransferObserver } from '../session/transfer-observer.js';
import type { MessengerCounts } from '../wire/messenger-counters.js';
import { parseTraceparent } from '../wire/trace-context.js';
import { BoundedLabel } from './bounded-label.js';
import { CountedTotals } from './counted-total.js';
import { failureReason } from './failure-reason.js';
import { promClient } from './libraries.js';
import { MetricSet } from './metric-set.js';
import { type Observed, once } from './observed.js';

import { refusalOf } from './refusals.js';
import { gaugeSeries, type Snapshot, takeSnapshot } from './snapshot.js';
import { exposedTailMs, transferMs } from './transfer-times.js';

const MAX_REASONS = 64;
const BAD_TRACE = 'bad_traceparent:';
interface Source {
  readonly observed: Observed;
  readonly totals: CountedTotals;
}

/**
 * Role: fills a Prometheus registry from transceivers, executors and coordinators.
 * Why: histograms and outcomes come from events, everything that is a state comes from `stats()` when it is scraped, so that nothing is
 *   counted twice and nothing is computed for nobody. Parts that share a registry are summed.
 * Ownership: the registry is the caller's when it was given. `attach` returns what takes all listeners away again.
 *
 * @example
 * const metrics = new KvMetrics();
 * const detach = metrics.attach({ transceiver, executor });
 * const text = await metrics.registry.metrics();
 */
export class KvMetrics {
  readonly registry: Registry;
  readonly #set: MetricSet;
  readonly #sources = new Map<Source, () => void>();
  readonly #reasons = new BoundedLabel(MAX_REASONS);
  readonly #events = new BoundedLabel(MAX_REASONS);
  #snapshot: Snapshot | null = null;

  /** @throws ConfigError when the registry has metrics of this package already */
  constructor(options: { readonly registry?: Registry } = {}) {
    this.registry = options.registry ?? new (promClient().Registry)();
    this.#set = new MetricSet(
      this.registry,
      () => this.#now(),
      (key) => gaugeSeries(key, this.#now()),
    );
  }

  /** @returns takes the listeners away again, keeps what was counted; idempotent */
  attach(observed: Observed): () => void {
    const source: Source = { observed, totals: new CountedTotals() };
    const { transceiver, executor, coordinator } = observed;
    const detach = once([
      transceiver?.observe(this.#ofTransceiver()) ?? (() => {}),
      executor?.observe(this.#ofExecutor()) ?? (() => {}),
      coordinator?.observe(this.#ofCoordinator()) ?? (() => {}),
      () => {
        this.#count(source, transceiver?.stats() ?? null);
        this.#sources.delete(source);
        this.#snapshot = null;
      },
    ]);
    this.#sources.set(source, detach);
    this.#snapshot = null;
    return detach;
  }

  /** Detaches everything and takes the metrics out of the registry. */
  close(): void {
    for (const detach of [...this.#sources.values()]) detach();
    this.#set.remove();
  }

  /** One scrape reads many metrics in one turn, and all of them the same snapshot. */
  #now(): Snapshot {
    if (this.#snapshot !== null) return this.#snapshot;
    const sources = [...this.#sources.keys()];
    const snapshot = takeSnapshot(sources.map(({ observed }) => observed));
    this.#snapshot = snapshot;
    queueMicrotask(() => {
      this.#snapshot = null;
    });
    const stats = snapshot.transceivers.values();
    const executors = snapshot.executors.values();
    const coordinators = snapshot.coordinators.values();
    for (const source of sources) {
      const { transceiver, executor, coordinator } = source.observed;
      if (transceiver !== undefined) this.#count(source, stats.next().value ?? null);
      if (executor !== undefined) this.#countErrors(source, 'executor', executors.next().value ?? null);
      if (coordinator !== undefined) this.#countErrors(source, 'coordinator', coordinators.next().value ?? null);
    }
    return snapshot;
  }

  /** Adds by how much a transceiver's own counters have grown. */
  #count({ totals }: Source, stats: TransceiverStats | null): void {
    if (stats === null) return;
    for (const [name, total] of Object.entries(stats.counters)) {
      const rise = totals.rise(name, total);
      const refusal = refusalOf(name);
      if (name === 'released_unproven') this.#set.add('unprovenReleases', { of: 'request' }, rise);
      else if (name.startsWith(BAD_TRACE))
        this.#set.add('badTraceparents', { source: name.slice(BAD_TRACE.length) }, rise);
      else if (refusal !== null)
        this.#set.add('framesRefused', { kind: refusal.kind, reason: this.#reasons.of(refusal.reason) }, rise);
      else this.#set.add('events', { event: this.#events.of(name) }, rise);
    }
    if (stats.messenger !== null) this.#countMessenger(totals, stats.messenger);
    if (stats.bounce !== null) this.#countBounce(totals, stats.bounce);
  }

  #countErrors({ totals }: Source, part: string, stats: { readonly internalErrors: number } | null): void {
    if (stats === null) return;
    const rise = totals.rise(`${part} ${INTERNAL_ERRORS}`, stats.internalErrors);
    if (rise > 0) this.#set.add('events', { event: this.#events.of(INTERNAL_ERRORS) }, rise);
  }

  #countMessenger(totals: CountedTotals, counts: MessengerCounts): void {
    const rise = (name: string, total: number): number => totals.rise(`messenger ${name}`, total);
    this.#set.add('controlFrames', { direction: 'sent' }, rise('sent', counts.framesSent));
    this.#set.add('controlFrames', { direction: 'received' }, rise('received', counts.framesReceived));
    this.#set.add('controlBytes', { direction: 'sent' }, rise('bytes sent', counts.bytesSent));
    this.#set.add('controlBytes', { direction: 'received' }, rise('bytes received', counts.bytesReceived));
    this.#set.add('connectionsLost', {}, rise('lost', counts.connectionsLost));
    for (const [reason, total] of Object.entries(counts.framesDropped))
      this.#set.add('controlDropped', { reason }, rise(`dropped ${reason}`, total));
    for (const [reason, total] of Object.entries(counts.handshakesRefused))
      this.#set.add('handshakesRefused', { reason }, rise(`refused ${reason}`, total));
  }

  #countBounce(totals: CountedTotals, stats: BounceStats): void {
    const rise = (name: keyof BounceStats): number => totals.rise(`bounce ${name}`, stats[name]);
    this.#set.add('bouncedBytes', { direction: 'gathered' }, rise('bytesGathered'));
    this.#set.add('bouncedBytes', { direction: 'scattered' }, rise('bytesScattered'));
    this.#set.add('bounceRefusals', { direction: 'sent' }, rise('nacksSent'));
    this.#set.add('bounceRefusals', { direction: 'received' }, rise('nacksReceived'));
  }

  #ofTransceiver(): TransferObserver {
    const set = this.#set;
    return {
      onPeersArrived: (_, side, waitedMs) => set.observe('queueSeconds', { side }, waitedMs / 1000),
      onSliceEnded: ({ seq, path: known, status, bytes, submittedAtMs, postedAtMs, finishedAtMs }) => {
        if (seq === null) return;
        const path = known ?? 'unknown';
        set.add('slices', { path, status });
        if (postedAtMs !== null) set.observe('sliceWaitSeconds', { path }, (postedAtMs - submittedAtMs) / 1000);
        if (status !== 'transferred') return;
        set.observe('sliceBytes', { path }, bytes);
        if (postedAtMs !== null && finishedAtMs !== null)
          set.observe('sliceSeconds', { path }, (finishedAtMs - postedAtMs) / 1000);
      },
      onSettled: ({ side, outcome, error, timings, salvageableTokens }) => {
        set.add('transfers', { side, outcome });
        set.add('transferredBytes', { side }, timings.bytesDone);
        set.add('salvageableTokens', {}, salvageableTokens);
        if (outcome === 'failed')
          set.add('transferFailures', { side, code: error?.code ?? 'ERR_KVT_INTERNAL', reason: failureReason(error) });
        if (outcome !== 'completed') return;
        set.observe('transferBytes', { side }, timings.bytesDone);
        const [wholeMs, tailMs] = [transferMs(timings), exposedTailMs(timings)];
        if (wholeMs !== null) set.observe('transferSeconds', { side }, wholeMs / 1000);
        if (tailMs !== null) set.observe('exposedTailSeconds', {}, tailMs / 1000);
      },
      onFallback: ({ source }) => set.add('fallbacks', { source }),
    };
  }

  #ofExecutor(): ExecutorObserver {
    const set = this.#set;
    const submittedAtMs = new WeakMap<LlmRequest, number>();
    const prefillAtMs = new WeakMap<LlmRequest, number>();
    const since = (start: number | undefined, atMs: number, use: (seconds: number) => void): void => {
      if (start !== undefined) use((atMs - start) / 1000);
    };
    return {
      onSubmitted: (request, atMs) => void submittedAtMs.set(request, atMs),
      onPrefillStarted: (request, atMs) => void prefillAtMs.set(request, atMs),
      onPrefillDone: (request, atMs) =>
        since(prefillAtMs.get(request), atMs, (seconds) => set.observe('prefillSeconds', {}, seconds)),
      onFirstToken: (request, _, atMs) =>
        since(submittedAtMs.get(request), atMs, (seconds) =>
          set.observe('timeToFirstTokenSeconds', { scope: 'server' }, seconds),
        ),
      onFinished: (request, outcome, atMs) => {
        const role = roleOf(request);
        set.add('requests', { role, outcome });
        if (outcome === 'failed') set.add('requestFailures', { role, code: request.error?.code ?? 'ERR_KVT_INTERNAL' });
        since(submittedAtMs.get(request), atMs, (seconds) => set.observe('requestSeconds', { role }, seconds));
        if (role !== 'context') set.add('outputTokens', {}, request.outputTokens.length);
        if (role === 'generation') return;
        set.add('promptTokens', { source: 'reused' }, request.prepopulatedLen);
        set.add('promptTokens', { source: 'computed' }, request.chunkEnd - request.prepopulatedLen);
      },
      onStep: ({ startedAtMs, endedAtMs }) => set.observe('stepSeconds', {}, (endedAtMs - startedAtMs) / 1000),
    };
  }

  #ofCoordinator(): CoordinatorObserver {
    const set = this.#set;
    return {
      onSubmitted: ({ request: { traceparent = '' } }) => {
        if (traceparent !== '' && parseTraceparent(traceparent) === null)
          set.add('badTraceparents', { source: 'coordinator' });
        return undefined;
      },
      onFinished: (_, { outcome, attempts, receivedAtMs, firstTokenAtMs }) => {
        set.add('coordinatorRequests', { outcome });
        set.add('coordinatorRetries', {}, attempts - 1);
        if (firstTokenAtMs !== null)
          set.observe('timeToFirstTokenSeconds', { scope: 'coordinator' }, (firstTokenAtMs - receivedAtMs) / 1000);
      },
    };
  }
}
