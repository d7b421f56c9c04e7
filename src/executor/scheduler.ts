import { ConfigError } from '../errors.js';
import type { TurnBudget } from '../turn-budget.js';
import { type LlmRequest, remainingPromptTokens } from './request.js';

/** Share of the token budget that decode steps leave to waiting prompts, so that neither can starve the other. */
const PREFILL_SHARE = 1 / 8;

/** What one step of the loop may take. */
export interface SchedulerLimits {
  /** Most prompt tokens of one request in one step; any value, block size or not. */
  readonly chunkTokens: number;
  /** Most tokens of one step: prompt tokens plus one per decode step. */
  readonly tokenBudget: number;
  /** Most prompt tokens being received at once, counted in whole blocks; null = no limit. */
  readonly maxTokensInBuffer: number | null;
}

/** The scheduler's view of the cache. */
export interface CapacityPort {
  /** What `admit` needs and takes time with the length of the prompt, in portions. Null: there is nothing to wait for. */
  prepare?(request: LlmRequest): Promise<void> | null;
  /**
   * Brings a request into the cache; idempotent. On 'admitted', `prepopulatedLen` and the chunk bounds are set. 'refused': it was failed.
   */
  admit(request: LlmRequest): 'admitted' | 'wait' | 'refused';
  /** The end of the longest chunk up to `chunkEnd` for which there can ever be blocks. Absent: `chunkEnd`. */
  longestChunk?(request: LlmRequest, chunkStart: number, chunkEnd: number): number;
  /** What `reserve` needs and takes time with the blocks that it takes, in portions, as `prepare`. */
  prepareReserve?(request: LlmRequest, endToken: number, firstToken?: number): Promise<void> | null;
  /**
   * Makes blocks for tokens `[0, endToken)` exist; false: not now, and nothing changed.
   * @param firstToken first token computed here, when those before it come from elsewhere
   */
  reserve(request: LlmRequest, endToken: number, firstToken?: number): boolean;
  /**
   * True: the request's pages are being moved, and nothing is planned for it until they are not; those behind it go on. Absent: the engine
   * waits for the moves, and whoever is in the batch with it.
   */
  holdBack?(request: LlmRequest): boolean;
}

export interface PlannedChunk {
  readonly request: LlmRequest;
  readonly chunkStart: number;
  readonly chunkEnd: number;
}

export interface StepPlan {
  readonly context: readonly PlannedChunk[];
  readonly generation: readonly LlmRequest[];
  /** Prompts that have their blocks and wait for pages that are being moved. */
  readonly held: readonly LlmRequest[];
}

/** @throws ConfigError naming the limit and its range */
export function checkLimits(limits: SchedulerLimits): void {
  atLeast('chunkTokens', limits.chunkTokens, 1);
  // One token for a decode step and one for a prompt: with a single one, one of the two could wait for ever.
  atLeast('tokenBudget', limits.tokenBudget, 2);
  if (limits.maxTokensInBuffer !== null) atLeast('maxTokensInBuffer', limits.maxTokensInBuffer, 1);
}

/**
 * Decides one step. Decode steps come first (each is one token and somebody waits for it) but leave prompts their share; prompts go in
 * the order given, and none overtakes one that lacks blocks.
 * @param decode least recently served first
 * @param prefill first come first
 * @param turns lets others have their turn in between; what is handed over meanwhile may still be planned
 */
export async function planStep(
  limits: SchedulerLimits,
  decode: Iterable<LlmRequest>,
  prefill: Iterable<LlmRequest>,
  port: CapacityPort,
  turns: TurnBudget | null = null,
): Promise<StepPlan> {
  const prompts = prefill[Symbol.iterator]();
  let next = prompts.next();
  const share = next.done === true ? 0 : Math.max(1, Math.floor(limits.tokenBudget * PREFILL_SHARE));
  const generation: LlmRequest[] = [];
  for (const request of decode) {
    if (generation.length >= limits.tokenBudget - share) break;
    // Its last token is already on its way.
    if (request.outputTokens.length + request.tokensInFlight >= request.maxTokens) continue;
    if (turns?.isSpent() === true) await turns.nextTurn();
    // A decode step without a block is skipped, not queued behind: its blocks were committed at admission and come free.
    if (!port.reserve(request, decodePosition(request) + 1) || port.holdBack?.(request) === true) continue;
    generation.push(request);
  }

  let budget = limits.tokenBudget - generation.length;
  const context: PlannedChunk[] = [];
  const held: LlmRequest[] = [];
  for (; next.done !== true && budget > 0; next = prompts.next()) {
    const request = next.value;
    // Its last chunk is under way, and was not handed to the transceiver yet.
    if (remainingPromptTokens(request) === 0) continue;
    if (turns?.isSpent() === true) await turns.nextTurn();
    const preparing = port.prepare?.(request) ?? null;
    if (preparing !== null) await preparing;
    const admission = port.admit(request);
    if (admission === 'refused') continue;
    if (admission === 'wait') break;
    const chunkStart = request.chunkEnd;
    const wantedEnd = chunkStart + Math.min(remainingPromptTokens(request), limits.chunkTokens, budget);
    const chunkEnd = port.longestChunk?.(request, chunkStart, wantedEnd) ?? wantedEnd;
    const taking = port.prepareReserve?.(request, chunkEnd) ?? null;
    if (taking !== null) await taking;
    if (!port.reserve(request, chunkEnd)) break;
    if (port.holdBack?.(request) === true) {
      held.push(request);
      continue;
    }
    context.push({ request, chunkStart, chunkEnd });
    budget -= chunkEnd - chunkStart;
  }
  return { context, generation, held };
}

/**
 * Decides which generation requests may post their receive, first come first served. A prompt larger than the whole buffer is let in
 * when the buffer is empty, and then alone.
 * @param bufferBlocks blocks of the prompts being received now
 * @param options.mostRequests most requests to let in by one call
 * @param options.turns as for `planStep`
 */
export async function planReceives(
  limits: SchedulerLimits,
  waiting: Iterable<LlmRequest>,
  bufferBlocks: number,
  tokensPerBlock: number,
  port: CapacityPort,
  {
    mostRequests = Infinity,
    turns = null,
  }: { readonly mostRequests?: number; readonly turns?: TurnBudget | null } = {},
): Promise<readonly LlmRequest[]> {
  const most =
    limits.maxTokensInBuffer === null ? Infinity : Math.max(1, Math.floor(limits.maxTokensInBuffer / tokensPerBlock));
  const receive: LlmRequest[] = [];
  let used = bufferBlocks;
  for (const request of waiting) {
    if (receive.length >= mostRequests) break;
    if (turns?.isSpent() === true) await turns.nextTurn();
    const blocks = promptBlocks(request, tokensPerBlock);
    if (used > 0 && used + blocks > most) break;
    const preparing = port.prepare?.(request) ?? null;
    if (preparing !== null) await preparing;
    const admission = port.admit(request);
    if (admission === 'refused') continue;
    const promptLen = request.promptTokens.length;
    if (admission === 'wait') break;
    const taking = port.prepareReserve?.(request, promptLen, promptLen) ?? null;
    if (taking !== null) await taking;
    if (!port.reserve(request, promptLen, promptLen)) break;
    receive.push(request);
    used += blocks;
  }
  return receive;
}

/** Blocks that the prompt spans. */
export function promptBlocks(request: LlmRequest, tokensPerBlock: number): number {
  return Math.ceil(request.promptTokens.length / tokensPerBlock);
}

/**
 * Position of the token that the next decode step feeds: the newest one, whose KV is not in the cache yet. A step under way may still have to
 * sample it.
 */
export function decodePosition({ promptTokens, outputTokens, tokensInFlight }: LlmRequest): number {
  return promptTokens.length + outputTokens.length + tokensInFlight - 1;
}

function atLeast(name: string, value: number, least: number): void {
  if (!Number.isSafeInteger(value) || value < least) {
    throw new ConfigError(`${name} is ${value}; it must be an integer of at least ${least}`);
  }
}
