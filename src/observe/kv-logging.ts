import type { Clock } from '../clock.js';
import type { CoordinatorObserver } from '../coordinator/coordinator-observer.js';
import type { KvTransceiverError } from '../errors.js';
import type { ExecutorObserver, RequestOutcome } from '../executor/executor-events.js';
import { type LlmRequest, requestKey } from '../executor/request.js';
import { roleOf } from '../executor/request-states.js';
import type { Settled } from '../session/cache-transceiver.js';
import type { TransferObserver } from '../session/transfer-observer.js';
import type { TransceiverLog } from '../transceiver.js';
import { LineLimit } from './line-limit.js';
import { LOG_LINES } from './log-lines.js';
import type { LogFields, Logger } from './logger.js';
import { type Observed, once } from './observed.js';
import { isRefusal } from './refusals.js';
import { exposedTailMs, transferMs } from './transfer-times.js';

/** Frames are refused as fast as anybody sends them. */
const REFUSED_INTERVAL_MS = 10_000;
/** Fallbacks that are remembered as told. */
const MAX_TOLD = 256;
const MAX_TEXT = 1000;

/**
 * Role: log lines of what ends, falls back, is refused or is lost; docs/observability.md lists them.
 * Invariant: fields are named here one by one, so that no key, metadata, token or content of a request comes into a line.
 */
export class KvLogging {
  /** For `OpenTransceiverOptions.log`: a fallback that was told there is not told again here, and so with lost peers. */
  readonly log: TransceiverLog;
  readonly #logger: Logger;
  readonly #refused: LineLimit;
  readonly #told = new Set<string>();

  constructor(options: { readonly logger: Logger; readonly clock: Clock }) {
    this.#logger = options.logger;
    this.#refused = new LineLimit(options.clock, REFUSED_INTERVAL_MS);
    this.log = {
      warn: (message) => this.#tell('warn', message),
      info: (message) => this.#tell('info', message),
    };
  }

  /** A logger whose lines carry the ids of a request. */
  of(request: LlmRequest): Logger {
    return this.#logger.child({ rid: requestKey(request).toString(), request: request.id, role: roleOf(request) });
  }

  /** @returns takes the listeners away again; idempotent */
  attach({ transceiver, executor, coordinator }: Observed): () => void {
    return once([
      transceiver?.observe(this.#ofTransceiver()) ?? (() => {}),
      executor?.observe(this.#ofExecutor()) ?? (() => {}),
      coordinator?.observe(this.#ofCoordinator()) ?? (() => {}),
    ]);
  }

  #ofTransceiver(): TransferObserver {
    return {
      onSettled: (settled) => this.#settled(settled),
      onFallback: ({ source, message }) => {
        if (this.#remember(message)) this.#logger.warn({ source, reason: clip(message) }, LOG_LINES.fallback);
      },
      onPeerReady: (peer) => this.#logger.debug({ peer }, LOG_LINES.peerReady),
      onPeerLost: (peer, message, isBusy) => {
        if (this.#told.delete(message)) return;
        this.#logger[isBusy ? 'warn' : 'info']({ peer, reason: clip(message) }, LOG_LINES.peerLost);
      },
      onCounted: (name) => {
        if (!isRefusal(name)) return;
        const suppressed = this.#refused.take(name);
        if (suppressed !== null) this.#logger.warn({ reason: name, suppressed }, LOG_LINES.frameRefused);
      },
    };
  }

  #ofExecutor(): ExecutorObserver {
    return {
      onFinished: (request, outcome) => {
        const { error } = request;
        const fields: LogFields = {
          outcome,
          prompt: request.promptTokens.length,
          reused: request.prepopulatedLen,
          generated: request.outputTokens.length,
          ...failure(outcome, error),
        };
        this.of(request)[levelOf(outcome, error)](fields, LOG_LINES.request);
      },
      onWarning: (message) => this.#logger.warn({ reason: clip(message) }, LOG_LINES.executorWarning),
      onRankGroupLost: (error) => this.#logger.error(failure('failed', error), LOG_LINES.rankGroupLost),
    };
  }

  #ofCoordinator(): CoordinatorObserver {
    return {
      onFinished: (_, { id, outcome, error, attempts, usage, receivedAtMs, firstTokenAtMs, finishedAtMs }) => {
        const fields: LogFields = {
          rid: id.toString(),
          outcome,
          attempts,
          prompt: usage.promptTokens,
          reused: usage.cachedTokens,
          generated: usage.completionTokens,
          ttftMs: firstTokenAtMs === null ? null : round(firstTokenAtMs - receivedAtMs),
          totalMs: round(finishedAtMs - receivedAtMs),
          ...failure(outcome, error),
        };
        this.#logger[levelOf(outcome, error)](fields, LOG_LINES.coordinated);
      },
    };
  }

  #settled({ request, side, outcome, error, timings, salvageableTokens }: Settled): void {
    const [wholeMs, tailMs] = [transferMs(timings), exposedTailMs(timings)];
    const fields: LogFields = {
      side,
      outcome,
      slices: timings.slices,
      bytes: timings.bytesDone,
      totalMs: round(timings.settledAtMs - timings.startedAtMs),
      transferMs: wholeMs === null ? null : round(wholeMs),
      exposedTailMs: tailMs === null || outcome !== 'completed' ? null : round(tailMs),
      ...(outcome === 'completed' ? {} : { salvageable: salvageableTokens }),
      ...failure(outcome, error),
    };
    this.of(request)[levelOf(outcome, error)](fields, LOG_LINES.transfer);
  }

  #tell(level: 'warn' | 'info', message: string): void {
    this.#remember(message);
    this.#logger[level]({}, clip(message));
  }

  /** Remembers it. False: the same was told before. */
  #remember(message: string): boolean {
    if (this.#told.has(message)) return false;
    if (this.#told.size >= MAX_TOLD) this.#told.clear();
    this.#told.add(message);
    return true;
  }
}

function levelOf(outcome: RequestOutcome, error: KvTransceiverError | null): 'info' | 'warn' | 'error' {
  if (outcome !== 'failed') return 'info';
  return error?.code === 'ERR_KVT_INTERNAL' ? 'error' : 'warn';
}

function failure(outcome: RequestOutcome, error: KvTransceiverError | null): LogFields {
  if (error === null || outcome === 'completed') return {};
  return { code: error.code, reason: clip(error.message) };
}

function clip(text: string): string {
  return text.length <= MAX_TEXT ? text : `${text.slice(0, MAX_TEXT)}…`;
}

function round(ms: number): number {
  return Math.round(ms * 1000) / 1000;
}
