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

export interface Shape {
  readonly contexts: number;
  readonly generations: number;
  /** Sliding window of the second layer group, or null for one group of full attention. */
  readonly windowSize: number | null;
  readonly slotCount: number;
  readonly auxSlots: number;
  readonly chunkTokens: number;
  readonly tokenBudget: number;
  readonly maxTokensInBuffer: number | null;
  readonly msPerToken: number;
  readonly limits: Limits;
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
  | {
      readonly kind: 'crash';
      readonly host: HostRef;
      readonly atMs: number;
      readonly restartAfterMs: number | null;
      /** Whether the peers' sockets notice. */
      readonly noticed: boolean;
    }
  | { readonly kind: 'shutdown'; readonly host: HostRef; readonly atMs: number; readonly restartAfterMs: number | null }
  | { readonly kind: 'stop'; readonly host: HostRef; readonly atMs: number; readonly ms: number }
  | { readonly kind: 'jump'; readonly host: HostRef; readonly atMs: number; readonly ms: number }
  | {
      readonly kind: 'transfers';
      readonly context: number;
      readonly fate: TransferFate['kind'];
      readonly probability: number;
      /** Posts that pass before the first it can meet, and how many it can meet. */
      readonly skip: number;
      readonly count: number;
      readonly durationMs: number;
      readonly tailMs: number;
    }
  | { readonly kind: 'forward'; readonly host: HostRef; readonly skip: number; readonly how: 'enqueue' | 'device' }
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
