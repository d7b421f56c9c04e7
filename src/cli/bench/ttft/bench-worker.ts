import type { ContentJob } from '../../../agent/page-content.js';
import { InternalError, KvTransceiverError } from '../../../errors.js';
import { createRequest } from '../../../executor/create-request.js';
import type { DisaggregatedParams, LlmRequest } from '../../../executor/request.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import { promptTokens } from '../prompt-source.js';
import type { BenchRank } from './bench-rank.js';
import { BenchServer } from './bench-server.js';
import { contextReport, latest, type RankContext } from './context-on-ranks.js';
import { DecodedTokens } from './decoded-tokens.js';
import { type PageVerification, receivedPages, verifyPages } from './page-verification.js';
import { RankTally } from './rank-tally.js';
import { restorePrompt, warmPrefix } from './warm-prefix.js';
import {
  CANCELLED_NAME,
  type ReportedError,
  type WorkerCommand,
  type WorkerEvent,
  type WorkerSettings,
} from './worker-messages.js';

/** Ids of cached prefixes in the cache manager; those of requests are small. */
const WARM_ID_BASE = 2 ** 39;

/** What a request ends with that the driver took back. */
const CANCELLED: ReportedError = { name: CANCELLED_NAME, code: '', message: 'cancelled by the driver' };

type Submit = Extract<WorkerCommand, { kind: 'submit' }>;

/** A rank that delivered the first token: its pages are pinned from then on, until those of all ranks are verified or given up. */
interface Arrived {
  readonly rank: BenchRank;
  readonly request: LlmRequest;
  readonly atMs: number;
  readonly timings: Settled['timings'] | null;
  readonly pages: readonly ContentJob[];
}

/**
 * Role: serves the driver's commands with one `BenchServer`: each request goes to all its ranks, and has one outcome.
 * Ordering: pages of a received request are pinned from its first token until they are verified, so that no later request gets them.
 */
export class BenchWorker {
  readonly #server: BenchServer;
  readonly #settings: WorkerSettings;
  readonly #say: (event: WorkerEvent) => void;
  readonly #prompts = new Map<number, Uint32Array>();

  private constructor(server: BenchServer, settings: WorkerSettings, say: (event: WorkerEvent) => void) {
    this.#server = server;
    this.#settings = settings;
    this.#say = say;
  }

  static async open(settings: WorkerSettings, say: (event: WorkerEvent) => void): Promise<BenchWorker> {
    const server = await BenchServer.open(settings);
    say({ kind: 'ready', endpoint: server.endpoint, path: pathOf(settings) });
    return new BenchWorker(server, settings, say);
  }

  async prepare({ key, prompt, warmTokens }: Extract<WorkerCommand, { kind: 'prepare' }>): Promise<void> {
    const tokens = promptTokens(prompt);
    this.#prompts.set(key, tokens);
    // Before the clock runs.
    this.#server.content.chainTokenSeeds(tokens);
    await Promise.all(this.#server.ranks.map((rank) => warmPrefix(rank, WARM_ID_BASE + key, tokens, warmTokens)));
    this.#say({ kind: 'prepared', key });
  }

  async restore({ key, prompts }: Extract<WorkerCommand, { kind: 'restore' }>): Promise<void> {
    const { chunkTokens } = this.#settings;
    for (const { prompt, ...bounds } of prompts) {
      const tokens = promptTokens(prompt);
      await Promise.all(
        this.#server.ranks.map((rank) => restorePrompt(rank, WARM_ID_BASE + key, tokens, { ...bounds, chunkTokens })),
      );
    }
    this.#say({ kind: 'prepared', key });
  }

  submit(command: Submit): void {
    const tokens = this.#prompts.get(command.key);
    if (tokens === undefined) throw new RangeError(`request ${command.key} was not prepared`);
    this.#prompts.delete(command.key);
    if (this.#settings.role === 'context') this.#submitContext(command, tokens);
    else this.#submitGeneration(command, tokens);
  }

  /** The request then ends here as cancelled; one that has ended is left alone. */
  cancel(key: number): void {
    this.#prompts.delete(key);
    for (const { executor } of this.#server.ranks) executor.cancel(key);
  }

  describe(): void {
    const { ranks } = this.#server;
    const cache = ranks[0]?.cache.whole.stats() ?? [];
    this.#say({ kind: 'described', paths: ranks.flatMap(({ paths }) => paths), cache });
  }

  close(deadlineMs: number): Promise<boolean> {
    return this.#server.close(deadlineMs);
  }

  #requestOf(command: Submit, tokens: Uint32Array): LlmRequest {
    return createRequest({
      id: command.key,
      promptTokens: tokens,
      maxTokens: command.maxTokens,
      disagg: this.#disaggregation(command),
      transferPolicy: command.policy,
    });
  }

  #disaggregation(command: Submit): DisaggregatedParams {
    const isContext = this.#settings.role === 'context';
    return {
      requestType: isContext ? 'context_only' : 'generation_only',
      scheduleStyle: 'generation_first',
      ctxRequestId: null,
      disaggRequestId: command.disaggRequestId,
      ctxDpRank: null,
      ctxInfoEndpoint: isContext ? null : command.contextEndpoint,
      firstGenTokens: [],
      draftTokens: [],
      traceparent: '',
    };
  }

  #submitContext(command: Submit, tokens: Uint32Array): void {
    const { key } = command;
    const tally = this.#tally<RankContext>(key, (ranks) =>
      this.#say({ kind: 'contextDone', key, report: contextReport(ranks) }),
    );
    this.#onEachRank(tally, (rank) => {
      rank.executor.submit(this.#requestOf(command, tokens), {
        onFinished: (request, outcome) => {
          const timings = rank.takeSettled(request)?.timings;
          const prefill = rank.chunkClock.prefillOf(request);
          if (outcome === 'cancelled') tally.fail(CANCELLED);
          else if (outcome !== 'completed' || timings === undefined || prefill === null) tally.fail(request.error);
          else tally.complete(rank.rank, { rank: rank.rank, request, prefill, timings });
        },
      });
    });
  }

  #submitGeneration(command: Submit, tokens: Uint32Array): void {
    const { key } = command;
    const seeds = this.#server.content.chainTokenSeeds(tokens);
    const pinned: Arrived[] = [];
    const decoded = new DecodedTokens(this.#server.ranks.length);
    const giveUp = (): void => {
      for (const { rank, request } of pinned.splice(0)) rank.cache.unpin(request.id);
    };
    const tally = this.#tally<Arrived>(
      key,
      (arrived) => {
        this.#say({ kind: 'firstToken', key, atMs: Math.max(...arrived.map(({ atMs }) => atMs)) });
        void this.#finish(key, arrived, decoded, giveUp);
      },
      giveUp,
    );
    this.#onEachRank(tally, (rank) => {
      let hasArrived = false;
      rank.executor.submit(this.#requestOf(command, tokens), {
        onFirstToken: (request, _, atMs) => {
          hasArrived = true;
          if (tally.hasFailed) return;
          const timings = rank.timingsOf(request);
          const arrived = { rank, request, atMs, timings, pages: receivedPages(rank, request, seeds) };
          rank.cache.pin(request.id);
          pinned.push(arrived);
          tally.complete(rank.rank, arrived);
        },
        onToken: (_request, _token, _index, atMs) => decoded.note(rank.rank, atMs),
        onFinished: (request, outcome) => {
          rank.takeSettled(request);
          const error = outcome === 'cancelled' ? CANCELLED : request.error;
          if (outcome === 'completed') decoded.end(rank.rank);
          else decoded.fail(error);
          if (!hasArrived || outcome !== 'completed') tally.fail(error);
        },
      });
    });
  }

  /** Tells the driver of a failure, once. */
  #tally<T>(key: number, onAll: (parts: readonly T[]) => void, onFailed: () => void = () => {}): RankTally<T> {
    return new RankTally(this.#server.ranks.length, onAll, (error) => {
      onFailed();
      this.#say({ kind: 'requestFailed', key, error: describeError(error) });
    });
  }

  #onEachRank(tally: Pick<RankTally<never>, 'fail'>, submit: (rank: BenchRank) => void): void {
    for (const rank of this.#server.ranks) {
      try {
        submit(rank);
      } catch (error) {
        tally.fail(error);
      }
    }
  }

  /** Says how the request ended when its pages are verified and its last token is out. */
  async #finish(key: number, arrived: readonly Arrived[], decoded: DecodedTokens, giveUp: () => void): Promise<void> {
    try {
      const { content } = this.#server;
      const verified = Promise.all(arrived.map(({ pages }) => verifyPages(content, pages))).finally(giveUp);
      // Both, whichever fails: the pages are given up only when nobody reads them any more.
      const [found, tokensMs] = await Promise.all([verified, decoded.all]);
      const cached = new Set(arrived.map(({ request }) => request.prepopulatedLen));
      if (cached.size > 1) throw new InternalError(`ranks found different prefixes in their caches: ${[...cached]}`);
      const report = {
        cachedTokens: [...cached][0] ?? 0,
        tail: {
          reportReadMs: latest(arrived.map(({ timings }) => timings?.tail.reportedAtMs ?? null)),
          settledMs: latest(arrived.map(({ timings }) => timings?.settledAtMs ?? null)),
        },
        firstWrong: firstWrongOf(found),
        ranks: found.map(({ bytesVerified, wrongBytes }, rank) => ({ rank, bytesVerified, wrongBytes })),
        tokensMs,
      };
      this.#say({ kind: 'generationDone', key, report });
    } catch (error) {
      this.#say({ kind: 'requestFailed', key, error: describeError(error) });
    }
  }
}

/** What moves the pages; of several that may, the agent takes the cheapest for each slice. */
function pathOf({ agent, device, path, bounceMb }: WorkerSettings): string {
  if (bounceMb !== null) return 'bounce';
  if (device === undefined) return agent === 'host' ? 'host' : 'rdma';
  return path ?? (agent === 'host' ? 'p2p' : 'cheapest');
}

function firstWrongOf(found: readonly PageVerification[]): string | null {
  const rank = found.findIndex(({ firstWrong }) => firstWrong !== null);
  if (rank === -1) return null;
  const where = found[rank]?.firstWrong ?? '';
  return found.length === 1 ? where : `rank ${rank}: ${where}`;
}

export function describeError(error: unknown): ReportedError {
  if (error === CANCELLED) return CANCELLED;
  if (error instanceof KvTransceiverError) return { name: error.name, code: error.code, message: error.message };
  if (error instanceof Error) return { name: error.name, code: '', message: error.message };
  return { name: 'Error', code: '', message: error === null ? 'ended without a reason' : String(error) };
}
