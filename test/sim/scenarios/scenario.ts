import type { Cluster } from '../cluster/cluster.js';
import type { Fault, InstanceShape, Plan, RequestItem, Shape } from '../plan.js';
import type { RunOptions } from '../run-plan.js';

/** What each side of one request must be told, and until when. */
export interface Expected {
  readonly context?: string;
  readonly generation?: string;
  readonly coordinator?: string;
  /** From the request's arrival to its last ending. */
  readonly withinMs?: number;
  /** Error code that one of the endings must have. */
  readonly code?: string;
}

/** A failure that was reported for some system, as a schedule for ours. Every invariant of the simulator holds besides. */
export interface Scenario {
  readonly name: string;
  /** Where it was reported. */
  readonly references: readonly string[];
  readonly plan: Plan;
  /** By request number; requests that are not named may end in any way. */
  readonly expect: Readonly<Record<number, Expected>>;
  /** Counters of all servers together that must have counted at least so much. */
  readonly counters?: Readonly<Record<string, number>>;
  readonly prepare?: (cluster: Cluster) => void;
  readonly check?: RunOptions['check'];
}

/** A reported failure that this design has no place for. */
export interface ByDesign {
  readonly name: string;
  readonly references: readonly string[];
  readonly why: string;
}

export interface ScenarioGroup {
  readonly group: string;
  readonly scenarios: readonly Scenario[];
  readonly byDesign: readonly ByDesign[];
}

const ONE_RANK: InstanceShape = { tpSize: 1, dpSize: 1, cpSize: 1, layersPerStage: [1], blockLayout: 'HND' };

export function instance(tpSize: number, layersPerStage: readonly number[] = [3], dpSize = 1): InstanceShape {
  return { tpSize, dpSize, cpSize: 1, layersPerStage, blockLayout: 'HND' };
}

const SHAPE: Shape = {
  contexts: 1,
  generations: 1,
  context: ONE_RANK,
  generation: ONE_RANK,
  kvHeads: 1,
  latent: false,
  joinWithinMs: 1,
  windowSize: null,
  slotCount: 48,
  arenaBytes: null,
  auxSlots: 16,
  chunkTokens: 8,
  tokenBudget: 32,
  maxTokensInBuffer: null,
  msPerToken: 0.2,
  limits: { transferQueueTimeoutMs: 3000, noProgressTimeoutMs: 2500, kvTransferTimeoutMs: 6000 },
};

export function plan(
  requests: readonly RequestItem[],
  faults: readonly Fault[] = [],
  shape: Partial<Shape> = {},
): Plan {
  // A window is one of the second of three layers.
  const one = shape.windowSize == null ? ONE_RANK : { ...ONE_RANK, layersPerStage: [3] };
  return { seed: 1, shape: { ...SHAPE, context: one, generation: one, ...shape }, requests, faults };
}

/** A pipelined prompt of six blocks, each half sent to its server, nobody to tell one of the other. */
export function request(number: number, changes: Partial<RequestItem> = {}): RequestItem {
  const item: RequestItem = {
    number,
    atMs: 10,
    entrance: 'direct',
    context: 0,
    generation: 0,
    style: 'generation_first',
    pipelined: true,
    earlyPrefix: true,
    promptLen: 24,
    family: number,
    maxTokens: 2,
    lagMs: 0,
    ...changes,
  };
  return item.style === 'context_first' && item.entrance !== 'bare'
    ? { ...item, pipelined: false, earlyPrefix: false }
    : item;
}

/** Many of them, `everyMs` apart. */
export function series(count: number, everyMs: number, changes: Partial<RequestItem> = {}): RequestItem[] {
  return Array.from({ length: count }, (_, index) => request(index, { atMs: 10 + index * everyMs, ...changes }));
}

/** Every request of the plan ends alike. */
export function all(requests: readonly RequestItem[], expected: Expected): Record<number, Expected> {
  return Object.fromEntries(requests.map(({ number }) => [number, expected]));
}

/** The fate of posts at context server 0, from the `skip`th on. */
export function transfers(
  fate: Extract<Fault, { kind: 'transfers' }>['fate'],
  changes: Partial<Extract<Fault, { kind: 'transfers' }>> = {},
): Fault {
  return {
    kind: 'transfers',
    context: 0,
    fate,
    probability: 1,
    skip: 0,
    count: 1,
    durationMs: 2,
    tailMs: 300,
    ...changes,
  };
}

export function lose(type: Extract<Fault, { kind: 'frame' }>['type'], count: number, skip = 0): Fault {
  return { kind: 'frame', type, skip, count, copies: 0, delayMs: 0 };
}

export function delay(type: Extract<Fault, { kind: 'frame' }>['type'], delayMs: number, copies = 1, count = 1): Fault {
  return { kind: 'frame', type, skip: 0, count, copies, delayMs };
}

export const CONTEXT = { side: 'context', index: 0 } as const;
export const GENERATION = { side: 'generation', index: 0 } as const;
export const DONE: Expected = { context: 'completed', generation: 'completed' };

export function thread(repository: string, number: number): string {
  return `https://github.com/${repository}/issues/${number}`;
}
