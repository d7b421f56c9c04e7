import type { CacheAllocation, CachePrompt, KvCacheManager, LayerGroup, RequestId } from '../cache/kv-cache-manager.js';
import { type KvTransceiverError, RequestTooLargeError, ResourceError } from '../errors.js';
import { staleBlockEnd } from '../geometry/stale-block-end.js';
import type { TurnBudget } from '../turn-budget.js';
import type { PromptContents } from './prompt-contents.js';
import type { LlmRequest } from './request.js';
import { roleOf } from './request-states.js';
import type { CapacityPort } from './scheduler.js';
import { typedError } from './typed-error.js';

/** Ended requests that are remembered before anybody looks which have drained. */
const FORGET_AT = 64;
/** Blocks that are looked for between two looks at the clock: a fraction of a millisecond. */
const BLOCKS_PER_LOOK = 256;

/** A manager that says nothing of how it allocates. */
const GROWS: CacheAllocation = { reservesPrompt: false, speculativeTokens: 0 };

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
  /** Demand per layer group of each request in the cache. */
  readonly #held = new Map<LlmRequest, readonly number[]>();
  readonly #committed: number[];
  /** Ended requests whose blocks a transfer still holds. */
  readonly #retained = new Set<RequestId>();
  #forgetAt = FORGET_AT;
  #blocked: LlmRequest | null = null;
  /** What the cache was asked to look for, of the request that is admitted next. */
  #ahead: { readonly request: LlmRequest; readonly prompt: CachePrompt } | null = null;

  readonly holdBack?: (request: LlmRequest) => boolean;

  constructor(options: CacheAdmissionOptions) {
    this.#options = options;
    if (options.holdBack !== undefined) this.holdBack = options.holdBack;
    this.#cache = options.cache;
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
      const blocks = this.#demand(request, group);
      // A windowed pool may be smaller than the prompt on purpose; the manager judges that, below or at admission.
      if (group.windowSize !== null || blocks <= group.slotCount) return;
      throw new RequestTooLargeError(
        `request ${request.id} needs ${blocks} blocks for ${tokens} tokens, layer group ${index} has ${group.slotCount} in all; shorten the prompt or maxTokens, or enlarge the pool`,
        { details: { request: request.id, tokens, blocks, slotCount: group.slotCount, group: index } },
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
    const inPortions = async (isDone: () => boolean | undefined): Promise<void> => {
      for (let portions = most; portions > 0 && isDone() === false; portions--)
        if (turns.isSpent()) await turns.nextTurn();
    };
    try {
      const prompt = this.#promptOf(request);
      this.#ahead = { request, prompt };
      await inPortions(() => this.#cache.lookAhead?.(prompt, BLOCKS_PER_LOOK));
      await inPortions(() => this.#cache.fetchAhead?.(prompt, BLOCKS_PER_LOOK));
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
      if (this.#blocked === request) this.#blocked = null;
      return true;
    }
    if (!decodes) this.#wait(request);
    return false;
  }

  /** The request stops asking for blocks. */
  leaveLine(request: LlmRequest): void {
    if (this.#blocked === request) this.#blocked = null;
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

  /** False: nobody but this request holds blocks, so that none will ever come back to it. */
  othersHoldBlocks(request: LlmRequest): boolean {
    if (this.#held.size > (this.#held.has(request) ? 1 : 0)) return true;
    this.#forgetDrained();
    return this.#retained.size > 0;
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
    return this.#cache.layerGroups.map((group) => this.#demand(request, group));
  }

  /** Beside what all that entered may need. */
  #hasRoom(demand: readonly number[]): boolean {
    return this.#cache.layerGroups.every(
      ({ slotCount }, index) => (this.#committed[index] as number) + (demand[index] as number) <= slotCount,
    );
  }

  /** Most blocks of `group` that the request holds at once. */
  #demand(request: LlmRequest, group: LayerGroup): number {
    if (group.kind === 'state') return 1;
    const { windowSize, tokensPerBlock, slotCount, sinkTokens = 0 } = group;
    const { reservesPrompt, speculativeTokens } = this.#cache.allocation ?? GROWS;
    const all = Math.ceil((demandTokens(request) + speculativeTokens) / tokensPerBlock);
    if (windowSize === null) return all;
    const role = roleOf(request);
    const sinks = Math.ceil(sinkTokens / tokensPerBlock);
    // What was received is kept from the final window on.
    const unseen = role === 'generation' ? staleBlockEnd(request.promptTokens.length, windowSize, tokensPerBlock) : 0;
    // A transfer holds nothing that leaves the window before the prompt ends (see the ledger): it sends the final window only.
    const { chunkTokens, stepsInFlight = 1 } = this.#options;
    const added = stepsInFlight * (role === 'generation' ? 1 : chunkTokens) + speculativeTokens;
    // A window that starts inside a block spans one more.
    const resident = reservesPrompt
      ? all - Math.max(0, unseen - sinks)
      : sinks + Math.ceil((windowSize + added) / tokensPerBlock) + 1;
    return Math.min(resident, all, slotCount);
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

/** Tokens whose KV this server holds at most: the last generated token is never fed back. */
function demandTokens(request: LlmRequest): number {
  return request.promptTokens.length + (roleOf(request) === 'context' ? 0 : request.maxTokens - 1);
}
