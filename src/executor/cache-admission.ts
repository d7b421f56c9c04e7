import type { CachePrompt, KvCacheManager, RequestId } from '../cache/kv-cache-manager.js';
import { type KvTransceiverError, RequestTooLargeError, ResourceError } from '../errors.js';
import type { TurnBudget } from '../turn-budget.js';
import { BlockDemand, demandTokens } from './block-demand.js';
import type { PromptContents } from './prompt-contents.js';
import { type LlmRequest, remainingPromptTokens } from './request.js';
import { roleOf } from './request-states.js';
import type { CapacityPort } from './scheduler.js';
import { typedError } from './typed-error.js';

/** Ended requests that are remembered before anybody looks which have drained. */
const FORGET_AT = 64;
/** Blocks that are looked for between two looks at the clock: a fraction of a millisecond. */
const BLOCKS_PER_LOOK = 256;

export interface CacheAdmissionOptions {
  readonly cache: KvCacheManager;
  /** Most tokens that one forward adds to a prompt. */
  readonly chunkTokens: number;
  /** Most forwards of one request that are enqueued and not read: what left a window is given up only when they are. Default 1. */
  readonly stepsInFlight?: number;
  /** See `CapacityPort.holdBack`. */
  readonly holdBack?: (request: LlmRequest) => boolean;
  readonly contents: PromptContents;
  /** Lets others have their turn while a long prompt is looked for in the cache. */
  readonly turns: TurnBudget;
  /** Place of a request in the line; lower came first. */
  readonly orderOf: (request: LlmRequest) => number;
  /** The cache refused the request for good. */
  readonly onRefused: (request: LlmRequest, error: KvTransceiverError) => void;
}

/**
 * Role: who may take blocks, and when.
 * Why: blocks are allocated chunk by chunk, so several requests could each hold a part and none could grow. A request enters only when the
 *   whole demand of all that entered fits the pool; blocks of ended requests that a transfer still pins come back by themselves.
 * Invariant: nobody takes blocks ahead of an earlier request that lacks them (decode steps excepted: they release what others wait for).
 */
export class CacheAdmission implements CapacityPort {
  readonly #options: CacheAdmissionOptions;
  readonly #cache: KvCacheManager;
  readonly #demand: BlockDemand;
  /** Demand per layer group of each request in the cache. */
  readonly #held = new Map<LlmRequest, readonly number[]>();
  readonly #committed: number[];
  /** Ended requests whose blocks a transfer still holds. */
  readonly #retained = new Set<RequestId>();
  #forgetAt = FORGET_AT;
  #blocked: LlmRequest | null = null;
  /** Decode steps that got no block when they asked last. */
  readonly #starved = new Set<LlmRequest>();
  /** What the cache was asked to look for, of the request that is admitted next. */
  #ahead: { readonly request: LlmRequest; readonly prompt: CachePrompt } | null = null;

  readonly holdBack?: (request: LlmRequest) => boolean;

  constructor(options: CacheAdmissionOptions) {
    this.#options = options;
    if (options.holdBack !== undefined) this.holdBack = options.holdBack;
    this.#cache = options.cache;
    this.#demand = new BlockDemand(options);
    this.#committed = options.cache.layerGroups.map(() => 0);
  }

  /** The earliest request that lacks blocks; everybody behind it waits too. */
  get blocked(): LlmRequest | null {
    return this.#blocked;
  }

  /** @throws RequestTooLargeError when the request exceeds a whole pool, so that waiting could never help */
  assertFits(request: LlmRequest): void {
    const tokens = demandTokens(request);
    this.#cache.layerGroups.forEach((group, index) => {
      const blocks = this.#demand.least(request, group);
      const { slotCount, windowSize } = group;
      if (blocks <= slotCount) return;
      const window = windowSize === null ? '' : ` with a window of ${windowSize}`;
      throw new RequestTooLargeError(
        `request ${request.id} needs ${blocks} blocks for ${tokens} tokens${window}, layer group ${index} has ${slotCount} in all; shorten the prompt or maxTokens, or enlarge the pool`,
        { details: { request: request.id, tokens, blocks, slotCount, group: index } },
      );
    });
    const promptLen = request.promptTokens.length;
    this.#cache.assertFits?.(request.id, {
      promptLen,
      ...(roleOf(request) === 'generation' ? { firstToken: promptLen } : {}),
    });
  }

  prepare(request: LlmRequest): Promise<void> | null {
    if (this.#held.has(request) || this.#waitsBehindAnother(request)) return null;
    const naming = this.#options.contents.prepare(request);
    const isLong = request.promptTokens.length > BLOCKS_PER_LOOK * this.#cache.tokensPerBlock;
    return isLong && this.#cache.lookAhead !== undefined ? this.#lookAhead(request, naming) : naming;
  }

  async #lookAhead(request: LlmRequest, naming: Promise<void> | null): Promise<void> {
    if (naming !== null) await naming;
    if (!this.#hasRoom(this.#demands(request))) return;
    const { turns } = this.#options;
    const { layerGroups, tokensPerBlock } = this.#cache;
    // Bounded: who asks the manager about other prompts meanwhile makes it begin anew.
    const most = layerGroups.length * (1 + request.promptTokens.length / tokensPerBlock / BLOCKS_PER_LOOK);
    const untilDone = async (isDone: () => boolean | undefined): Promise<void> => {
      for (let portions = most; portions > 0 && isDone() === false; portions--)
        if (turns.isSpent()) await turns.nextTurn();
    };
    try {
      const prompt = this.#promptOf(request);
      this.#ahead = { request, prompt };
      await untilDone(() => this.#cache.lookAhead?.(prompt, BLOCKS_PER_LOOK));
      await untilDone(() => this.#cache.fetchAhead?.(prompt, BLOCKS_PER_LOOK));
    } catch {
      // `addRequest` is given the same, and what it throws ends the request.
    }
  }

  admit(request: LlmRequest): 'admitted' | 'wait' | 'refused' {
    if (this.#held.has(request)) return 'admitted';
    if (this.#waitsBehindAnother(request)) return 'wait';
    const demand = this.#demands(request);
    if (!this.#hasRoom(demand)) return this.#wait(request);
    try {
      const prompt = this.#ahead?.request === request ? this.#ahead.prompt : this.#promptOf(request);
      this.#ahead = null;
      const { prepopulatedLen } = this.#cache.addRequest(request.id, prompt);
      request.prepopulatedLen = prepopulatedLen;
      request.chunkStart = prepopulatedLen;
      request.chunkEnd = prepopulatedLen;
    } catch (error) {
      if (error instanceof ResourceError) return this.#wait(request);
      this.#options.onRefused(request, typedError(error, 'the cache manager refused the request'));
      return 'refused';
    }
    this.#options.contents.drop(request);
    this.#held.set(request, demand);
    this.#commit(demand, 1);
    return 'admitted';
  }

  longestChunk(request: LlmRequest, chunkStart: number, chunkEnd: number): number {
    return this.#demand.longestChunk(request, chunkStart, chunkEnd);
  }

  prepareReserve(request: LlmRequest, endToken: number, firstToken?: number): Promise<void> | null {
    const isLong = request.promptTokens.length > BLOCKS_PER_LOOK * this.#cache.tokensPerBlock;
    if (!isLong || this.#waitsBehindAnother(request)) return null;
    if (this.#cache.growAhead?.(request.id, BLOCKS_PER_LOOK, endToken, firstToken) !== false) return null;
    return this.#growAhead(request, endToken, firstToken);
  }

  async #growAhead({ id }: LlmRequest, endToken: number, firstToken?: number): Promise<void> {
    const { turns } = this.#options;
    do if (turns.isSpent()) await turns.nextTurn();
    while (this.#cache.growAhead?.(id, BLOCKS_PER_LOOK, endToken, firstToken) === false);
  }

  reserve(request: LlmRequest, endToken: number, firstToken?: number): boolean {
    const decodes = request.state === 'GENERATION_IN_PROGRESS';
    if (!decodes && this.#waitsBehindAnother(request)) return false;
    if (this.#cache.ensureCapacity(request.id, endToken, firstToken)) {
      this.leaveLine(request);
      return true;
    }
    if (decodes) this.#starved.add(request);
    else this.#wait(request);
    return false;
  }

  /** The request stops asking for blocks. */
  leaveLine(request: LlmRequest): void {
    if (this.#blocked === request) this.#blocked = null;
    this.#starved.delete(request);
  }

  /** Gives up the request's blocks; a pin keeps them from being reused as long as a transfer may touch them. */
  free(request: LlmRequest): void {
    this.leaveLine(request);
    const demand = this.#held.get(request);
    if (demand === undefined) return;
    this.#held.delete(request);
    this.#commit(demand, -1);
    this.#cache.freeRequest(request.id);
    this.#retained.add(request.id);
    // Now and then, so that the cost of a request does not grow with those that are retained.
    if (this.#retained.size >= this.#forgetAt) this.#forgetDrained();
  }

  /**
   * Asked when no step is under way and none could be launched: the request that is to be given up because nobody is left who could give blocks
   * back, so that all who hold some wait for more. It is the last that came of those who lack blocks. Null: somebody may yet give some back,
   * or nobody lacks any.
   */
  get stuck(): LlmRequest | null {
    if (this.#blocked === null && this.#starved.size === 0) return null;
    for (const request of this.#held.keys()) if (this.#mayGiveBack(request)) return null;
    this.#forgetDrained();
    if (this.#retained.size > 0) return null;
    const { orderOf } = this.#options;
    let last = this.#blocked;
    // One that holds nothing takes nothing from the others.
    if (last !== null && !this.#held.has(last)) last = null;
    for (const request of this.#starved) if (last === null || orderOf(request) > orderOf(last)) last = request;
    return last ?? this.#blocked;
  }

  /** It does something else than to wait for blocks: it is received, sent, drained, cancelled, or its pages are being moved. */
  #mayGiveBack(request: LlmRequest): boolean {
    // What it was sent is pinned until it has drained, also what has left the window since.
    if (this.#starved.has(request)) return this.#cache.isPinned(request.id);
    if (request === this.#blocked) return false;
    switch (request.state) {
      case 'CONTEXT_INIT':
        if (remainingPromptTokens(request) === 0) return true;
        break;
      case 'GENERATION_IN_PROGRESS':
      case 'DISAGG_GENERATION_INIT':
        break;
      default:
        return true;
    }
    return request.cancelRequested || this.#areMoving(request);
  }

  #areMoving({ id }: LlmRequest): boolean {
    try {
      return (this.#cache.pagesReady?.(id) ?? null) !== null;
    } catch {
      // Whoever asks next gives the request up.
      return true;
    }
  }

  #forgetDrained(): void {
    for (const id of this.#retained) if (!this.#cache.isPinned(id)) this.#retained.delete(id);
    this.#forgetAt = Math.max(FORGET_AT, 2 * this.#retained.size);
  }

  #promptOf(request: LlmRequest): CachePrompt {
    const promptLen = request.promptTokens.length;
    return {
      promptLen,
      ...this.#options.contents.take(request),
      ...(roleOf(request) === 'generation' ? { firstToken: promptLen } : {}),
    };
  }

  #demands(request: LlmRequest): readonly number[] {
    return this.#cache.layerGroups.map((group) => this.#demand.most(request, group));
  }

  /** Beside what all that entered may need. */
  #hasRoom(demand: readonly number[]): boolean {
    return this.#cache.layerGroups.every(
      ({ slotCount }, index) => (this.#committed[index] as number) + (demand[index] as number) <= slotCount,
    );
  }

  #waitsBehindAnother(request: LlmRequest): boolean {
    if (this.#blocked === null || this.#blocked === request) return false;
    // What was let in has its whole demand in the pool: one that is not waits for it, however early it came, and never the other way round.
    if (this.#held.has(request) && !this.#held.has(this.#blocked)) return false;
    return this.#options.orderOf(this.#blocked) < this.#options.orderOf(request);
  }

  #wait(request: LlmRequest): 'wait' {
    this.#blocked = request;
    return 'wait';
  }

  #commit(demand: readonly number[], sign: 1 | -1): void {
    demand.forEach((blocks, index) => {
      this.#committed[index] = (this.#committed[index] as number) + sign * blocks;
    });
  }
}
