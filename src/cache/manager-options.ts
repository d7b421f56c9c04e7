import { ArgumentError } from '../errors.js';
import type { LayerGroup } from './kv-cache-manager.js';
import type { PageMover } from './page-mover.js';

/** Options of both reference cache managers. */
export interface CacheManagerOptions {
  /** Equal in all groups, `state` ones apart. */
  readonly tokensPerBlock: number;
  /** At least one. */
  readonly layerGroups: readonly LayerGroup[];
  /** Order in which slots are handed out. Default 1. */
  readonly seed?: number;
  /** Moves pages; needed for host slots and for partial reuse. Default: no moves. */
  readonly mover?: PageMover | null;
  /** A request may take over the first tokens of a cached block by a copy of it. Default false. */
  readonly partialReuse?: boolean;
  /** Tokens reserved past the end that was asked for, once the prompt is covered. Default 0. */
  readonly speculativeTokens?: number;
  /**
   * Smallest `tokensPerBlock` of the servers that prompts are received from; set it where it is known, as a rule to the manager's own.
   * Default 1, unknown: the block in which a received window begins (or the sinks end) then counts as received in part unless it begins
   * (they end) with it, and is not offered for reuse.
   */
  readonly senderTokensPerBlock?: number;
  /**
   * Ranks that share out the blocks of a prompt; the manager then counts its own only. Default 1. Above 1 no received block of a windowed
   * group is offered for reuse: which of them arrived depends on how long the prompt is on all ranks together.
   */
  readonly contextParallelSize?: number;
}

/** @throws ArgumentError naming the field */
export function checkManagerOptions(options: CacheManagerOptions): void {
  const { tokensPerBlock, layerGroups, speculativeTokens = 0, partialReuse = false, mover = null } = options;
  const { senderTokensPerBlock = 1, contextParallelSize = 1 } = options;
  if (!isPositive(tokensPerBlock))
    throw new ArgumentError(`tokensPerBlock must be a positive integer, got ${String(tokensPerBlock)}`);
  if (!Array.isArray(layerGroups) || layerGroups.length === 0)
    throw new ArgumentError('layerGroups: at least one layer group is needed');
  layerGroups.forEach((group, index) => {
    checkGroup(group, tokensPerBlock, `layerGroups[${index}]`);
  });
  if (options.seed !== undefined && !Number.isSafeInteger(options.seed))
    throw new ArgumentError(`seed must be an integer below 2^53, got ${String(options.seed)}`);
  if (!isCount(speculativeTokens))
    throw new ArgumentError(`speculativeTokens must be a non-negative integer, got ${String(speculativeTokens)}`);
  if (!isPositive(senderTokensPerBlock))
    throw new ArgumentError(`senderTokensPerBlock must be a positive integer, got ${String(senderTokensPerBlock)}`);
  if (!isPositive(contextParallelSize))
    throw new ArgumentError(`contextParallelSize must be a positive integer, got ${String(contextParallelSize)}`);
  if (mover !== null) return;
  if (partialReuse) throw new ArgumentError('partialReuse copies pages: pass a mover');
  const host = layerGroups.findIndex((group) => (group.hostSlotCount ?? 0) > 0);
  if (host !== -1) throw new ArgumentError(`layerGroups[${host}].hostSlotCount: host pages need a mover`);
}

function checkGroup(group: LayerGroup, tokensPerBlock: number, field: string): void {
  if (typeof group !== 'object' || group === null)
    throw new ArgumentError(`${field} must be a layer group, got ${String(group)}`);
  const { kind, windowSize, slotCount, sinkTokens = 0, hostSlotCount = 0 } = group;
  if (kind !== 'attention' && kind !== 'latent' && kind !== 'state')
    throw new ArgumentError(`${field}.kind must be attention, latent or state, got ${String(kind)}`);
  if (!isPositive(slotCount) || slotCount > 0x7fffffff) {
    throw new ArgumentError(`${field}.slotCount must be an integer from 1 to 2^31 - 1, got ${String(slotCount)}`);
  }
  if (kind === 'state') {
    if (windowSize !== null || sinkTokens !== 0 || hostSlotCount !== 0) {
      throw new ArgumentError(`${field}: a state group has no window, no sink tokens and no host slots`);
    }
    return;
  }
  if (group.tokensPerBlock !== tokensPerBlock) {
    throw new ArgumentError(`${field}.tokensPerBlock is ${group.tokensPerBlock}, the manager's is ${tokensPerBlock}`);
  }
  if (windowSize !== null && !isPositive(windowSize)) {
    throw new ArgumentError(`${field}.windowSize must be null or a positive integer, got ${String(windowSize)}`);
  }
  if (!isCount(sinkTokens) || (sinkTokens > 0 && windowSize === null)) {
    throw new ArgumentError(
      `${field}.sinkTokens must be a non-negative integer, and 0 without a window, got ${String(sinkTokens)}`,
    );
  }
  if (!isCount(hostSlotCount) || hostSlotCount > 0x7fffffff) {
    throw new ArgumentError(
      `${field}.hostSlotCount must be an integer from 0 to 2^31 - 1, got ${String(hostSlotCount)}`,
    );
  }
}

/** A whole number from 1 on that still counts up by one. */
export function isPositive(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 1;
}

function isCount(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}
