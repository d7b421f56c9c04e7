import { InternalError } from '../../../errors.js';
import type { LlmRequest } from '../../../executor/request.js';
import type { Settled } from '../../../session/cache-transceiver.js';
import { BYTES_PER_REQUEST, CHUNK_TOKENS, PROMPT_TOKENS, type SessionServer } from './session-server.js';

interface LiveRequest {
  readonly context: LlmRequest;
  readonly generation: LlmRequest;
  /** Sides whose outcome has come. */
  settledSides: number;
  failed: boolean;
}

/**
 * Role: requests that are all in the middle of their transfer: their receivers asked, their first slice has arrived, their last chunk is
 *   not computed yet. `replaceOldest` ends some and starts as many.
 * Why: that is what a server holds most of the time, and what must cost nothing while it waits.
 */
export class LiveSessions {
  readonly #context: SessionServer;
  readonly #generation: SessionServer;
  /** By request number, which is the order of their start. */
  readonly #live = new Map<number, LiveRequest>();
  readonly #finishing = new Map<number, LiveRequest>();
  /** Started, and not asked for yet. */
  readonly #waiting = new Map<number, LiveRequest>();
  #nextNumber = 1;
  #completed = 0;
  #failed = 0;
  #onChange: () => void = () => {};

  constructor(context: SessionServer, generation: SessionServer) {
    this.#context = context;
    this.#generation = generation;
    context.transceiver.onActivity(() => {
      this.#sendToReady();
      this.#takeSettled(context);
    });
    generation.transceiver.onActivity(() => this.#takeSettled(generation));
  }

  /** From now on outcomes are nobody's business: of a row that was given up, whose servers are closed next. */
  detach(): void {
    for (const { transceiver } of [this.#context, this.#generation]) transceiver.onActivity(() => {});
  }

  get started(): number {
    return this.#nextNumber - 1;
  }

  get completed(): number {
    return this.#completed;
  }

  get failed(): number {
    return this.#failed;
  }

  /** Makes requests and takes their pages; the transceivers do not know of them yet. */
  prepare(count: number): LiveRequest[] {
    return Array.from({ length: count }, () => {
      const number = this.#nextNumber++;
      const live: LiveRequest = {
        context: this.#context.makeRequest(number, null),
        generation: this.#generation.makeRequest(number, this.#context.endpoint),
        settledSides: 0,
        failed: false,
      };
      this.#context.admit(live.context);
      this.#generation.admit(live.generation);
      return live;
    });
  }

  /** Opens both sessions of a prepared request; its first slice leaves once its receiver asked. */
  open(live: LiveRequest): void {
    const { context, generation } = live;
    this.#generation.transceiver.requestAndReceiveAsync(generation);
    if (this.#context.transceiver.receiverReady(context))
      throw new InternalError('a receiver asked before it was told');
    this.#waiting.set(context.id, live);
  }

  /** Ends the oldest requests and starts new ones. @returns how many: those that are not under way yet cannot be ended */
  replaceOldest(count: number): number {
    const ended = this.finishOldest(count);
    for (const live of this.prepare(ended)) this.open(live);
    return ended;
  }

  /** Sends the last slice of the oldest requests. @returns how many there were */
  finishOldest(count: number): number {
    const oldest: [number, LiveRequest][] = [];
    for (const entry of this.#live) {
      if (oldest.length >= count) break;
      oldest.push(entry);
    }
    for (const [number, live] of oldest) {
      this.#live.delete(number);
      this.#finishing.set(number, live);
      this.#sendChunk(live, PROMPT_TOKENS);
      live.context.outputTokens.push(number);
    }
    // The aux content leaves now that the first tokens are known.
    if (oldest.length > 0) this.#takeSettled(this.#context);
    return oldest.length;
  }

  /** Resolves when nobody waits for a receiver; with `ended`, when no request is left that was told to end. */
  async settle(ended: boolean, limitMs: number): Promise<boolean> {
    const done = (): boolean => this.#waiting.size === 0 && (!ended || this.#finishing.size === 0);
    const { clock } = this.#context;
    const deadlineMs = clock.now() + limitMs;
    while (!done() && clock.now() < deadlineMs) {
      await new Promise<void>((resolve) => {
        const timer = clock.setTimer(20, resolve, { keepAlive: true });
        this.#onChange = () => {
          if (!done()) return;
          timer.cancel();
          resolve();
        };
      });
    }
    this.#onChange = () => {};
    return done();
  }

  #sendToReady(): void {
    for (const [number, live] of this.#waiting) {
      if (!this.#context.transceiver.receiverReady(live.context)) continue;
      this.#waiting.delete(number);
      this.#live.set(number, live);
      this.#sendChunk(live, CHUNK_TOKENS);
    }
    this.#onChange();
  }

  #sendChunk({ context }: LiveRequest, endToken: number): void {
    context.chunkStart = context.chunkEnd;
    context.chunkEnd = endToken;
    this.#context.transceiver.respondAndSendAsync(context, { after: null });
  }

  #takeSettled(server: SessionServer): void {
    for (const settled of server.transceiver.takeSettled()) this.#settled(server, settled);
    this.#onChange();
  }

  #settled(server: SessionServer, { request, side, outcome, firstTokens, timings }: Settled): void {
    const { id } = request;
    const live = this.#finishing.get(id) ?? this.#live.get(id) ?? this.#waiting.get(id);
    if (live === undefined) throw new InternalError(`a second outcome of request ${id}`);
    const received = side === 'context' || firstTokens[0] === id;
    if (outcome !== 'completed' || timings.bytesDone !== BYTES_PER_REQUEST || !received) live.failed = true;
    server.cache.freeRequest(id);
    live.settledSides += 1;
    if (live.settledSides < 2) return;
    for (const requests of [this.#finishing, this.#live, this.#waiting]) requests.delete(id);
    if (live.failed) this.#failed += 1;
    else this.#completed += 1;
  }
}
