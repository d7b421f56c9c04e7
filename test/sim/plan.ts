import type { StepSchedule } from '../../src/executor/executor-options.js';
import type { ScheduleStyle } from '../../src/executor/request.js';
import type { TransferFate } from './parts/sim-agent.js';
import type { MessageName } from './parts/sim-network.js';

export type Side = 'context' | 'generation';

/** A server of the cluster, by side and number. */
export interface HostRef {
  readonly side: Side;
  readonly index: number;
}

export interface Limits {
  readonly transferQueueTimeoutMs: number;
  readonly noProgressTimeoutMs: number;
  readonly kvTransferTimeoutMs: number;
}

/** How one instance splits the model over its ranks. */
export interface InstanceShape {
  readonly tpSize: number;
  /** More than 1: attention DP, each group of `tpSize / dpSize` ranks holds whole requests. */
  readonly dpSize: number;
  readonly layersPerStage: readonly number[];
  /** Ranks that share the blocks of a prompt, each every so manieth one. */
  readonly cpSize: number;
  readonly blockLayout: 'HND' | 'NHD';
  /** Of its executors. Default: plain. */
  readonly schedule?: StepSchedule;
}

export interface Shape {
  readonly contexts: number;
  readonly generations: number;
  readonly context: InstanceShape;
  readonly generation: InstanceShape;
  /** Of the model. An instance of more tensor parallel ranks has copies. */
  readonly kvHeads: number;
  /** One latent vector a token, the same on every rank of a stage. */
  readonly latent: boolean;
  /** Several ranks: how long after its process a rank joins its instance, at most. */
  readonly joinWithinMs: number;
  /** Sliding window of the second layer group, or null for one group of full attention. */
  readonly windowSize: number | null;
  readonly slotCount: number;
  /** Memory that writes are bounced through at each generation rank; null: they go to the pages. */
  readonly arenaBytes: number | null;
  readonly auxSlots: number;
  readonly chunkTokens: number;
  readonly tokenBudget: number;
  readonly maxTokensInBuffer: number | null;
  readonly msPerToken: number;
  readonly limits: Limits;
  /** Default: both sides store the same type. */
  readonly generationDtype?: string;
}

/**
 * How a request comes into the cluster. `coordinated`: through a coordinator, which cancels the other side when one fails. `direct`: each
 * server gets its half and nobody tells the other one, so that the control plane alone has to. `bare`: like direct, but the context half is
 * driven by an engine that does not wait for receivers. The rest are halves without the other.
 */
export type Entrance = 'coordinated' | 'direct' | 'bare' | 'context-only' | 'generation-only';

export interface RequestItem {
  readonly number: number;
  readonly atMs: number;
  readonly entrance: Entrance;
  readonly context: number;
  readonly generation: number;
  readonly style: ScheduleStyle;
  readonly pipelined: boolean;
  readonly earlyPrefix: boolean;
  readonly promptLen: number;
  readonly family: number;
  readonly maxTokens: number;
  /** Direct: how much later the context half (or, negative, the generation half) comes. */
  readonly lagMs: number;
}

interface Window {
  readonly fromMs: number;
  readonly toMs: number;
}

interface OneRank {
  /** Flat rank. Absent: whatever rank it is, or all of them. */
  readonly rank?: number;
}

/** Everything that can go wrong, each on its own, so that a failing schedule can be shrunk fault by fault. */
export type Fault =
  | ({ readonly kind: 'loss'; readonly probability: number } & Window)
  | ({ readonly kind: 'duplicate'; readonly probability: number } & Window)
  | ({ readonly kind: 'delay'; readonly probability: number; readonly maxMs: number } & Window)
  | ({ readonly kind: 'truncate'; readonly probability: number } & Window)
  | ({ readonly kind: 'partition'; readonly from: HostRef; readonly to: HostRef } & Window)
  | {
      readonly kind: 'frame';
      readonly type: MessageName;
      /** Frames of this type that pass before it. */
      readonly skip: number;
      readonly count: number;
      readonly copies: number;
      readonly delayMs: number;
    }
  | { readonly kind: 'break'; readonly from: HostRef; readonly to: HostRef; readonly atMs: number }
  | ({
      readonly kind: 'crash';
      readonly host: HostRef;
      readonly atMs: number;
      readonly restartAfterMs: number | null;
      /** Whether the peers' sockets notice. */
      readonly noticed: boolean;
      /** One rank: it comes back alone at half of `restartAfterMs`, before all of its instance are started again. */
      readonly aloneFirst?: boolean;
    } & OneRank)
  | { readonly kind: 'shutdown'; readonly host: HostRef; readonly atMs: number; readonly restartAfterMs: number | null }
  | ({ readonly kind: 'stop'; readonly host: HostRef; readonly atMs: number; readonly ms: number } & OneRank)
  | ({ readonly kind: 'jump'; readonly host: HostRef; readonly atMs: number; readonly ms: number } & OneRank)
  | ({
      readonly kind: 'transfers';
      readonly context: number;
      readonly fate: TransferFate['kind'];
      readonly probability: number;
      /** Posts that pass before the first it can meet, and how many it can meet. */
      readonly skip: number;
      readonly count: number;
      readonly durationMs: number;
      readonly tailMs: number;
    } & OneRank)
  | ({
      readonly kind: 'forward';
      readonly host: HostRef;
      readonly skip: number;
      readonly how: 'enqueue' | 'device';
    } & OneRank)
  | { readonly kind: 'cancel'; readonly request: number; readonly by: Side | 'user'; readonly afterMs: number };

/** One run: a pure function of its seed, and of what a shrink took away. */
export interface Plan {
  readonly seed: number;
  readonly shape: Shape;
  readonly requests: readonly RequestItem[];
  readonly faults: readonly Fault[];
}

/** One line a person can read. */
export function describeFault(fault: Fault): string {
  const { kind, ...rest } = fault;
  const details = Object.entries(rest).map(([name, value]) => `${name} ${told(value)}`);
  return `${kind}: ${details.join(', ')}`;
}

export function describeRequest(item: RequestItem): string {
  const { number, atMs, entrance, context, generation, style, pipelined, promptLen, family, maxTokens, lagMs } = item;
  const how = pipelined ? 'pipelined' : 'whole';
  return `request ${number} at ${told(atMs)} ms, ${entrance}, context ${context} -> generation ${generation}, ${style}, ${how}, ${promptLen} tokens of family ${family}, ${maxTokens} to say${lagMs === 0 ? '' : `, lag ${told(lagMs)} ms`}`;
}

function told(value: unknown): string {
  if (typeof value === 'number') return Number.isInteger(value) ? String(value) : value.toFixed(2);
  if (typeof value === 'object' && value !== null && 'side' in value && 'index' in value)
    return `${String(value.side)} ${String(value.index)}`;
  return String(value);
}

/** Ranks of one instance. */
export function rankCount({ tpSize, cpSize, layersPerStage }: InstanceShape): number {
  return tpSize * cpSize * layersPerStage.length;
}

/** Ranks that act alike: all, or those of one DP group. */
export function groupSize(shape: InstanceShape): number {
  return rankCount(shape) / shape.dpSize;
}

export function describeShape({ context, generation, kvHeads, latent, windowSize }: Shape): string {
  const told = ({ tpSize, dpSize, cpSize, layersPerStage }: InstanceShape): string =>
    `TP ${tpSize}${dpSize > 1 ? ` in ${dpSize} DP groups` : ''}${cpSize > 1 ? `, CP ${cpSize}` : ''}, layers ${layersPerStage.join(' + ')}`;
  const model = latent ? 'latent' : `${kvHeads} KV heads`;
  return `${model}${windowSize === null ? '' : `, window ${windowSize}`}: context ${told(context)} -> generation ${told(generation)}`;
}
