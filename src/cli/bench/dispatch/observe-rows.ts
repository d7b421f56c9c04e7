import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { SystemClock } from '../../../clock.js';
import { createLogger } from '../../../observe/create-logger.js';
import { Observation, type ObservationOptions } from '../../../observe/observation.js';
import { TransferObservers } from '../../../session/transfer-observer.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { ObservedLoop, REQUESTS_PER_TURN, SLICES_PER_REQUEST } from './observed-loop.js';

const WARM_UP_REQUESTS = 100;
/** Allocation is counted over so many requests between two garbage collections. */
const COUNTS = 7;
const HOOK_CALLS = 2_000_000;
/** Hooks that a slice of a request passes on both sides together, those of its request included; rounded up. */
const HOOKS_PER_SLICE = 4;

/** What observes both transceivers while a variant is measured. `off`: nothing, `detached`: nothing any more. */
export type ObserveVariant = 'off' | 'detached' | 'logs' | 'metrics' | 'tracing' | 'all';

/** What one slice costs the JavaScript thread, both transceivers together, planning, frames and bookkeeping included. */
export interface ObserveRow {
  readonly variant: ObserveVariant;
  readonly slicesPerRequest: number;
  readonly sliceUs: Percentiles;
  /** Heap bytes that a slice allocates. */
  readonly sliceBytes: number;
}

/** All variants, and what the hooks alone cost when nothing observes. */
export interface ObserveFigures {
  readonly rows: readonly ObserveRow[];
  /** One hook without an observer. */
  readonly hookNs: number;
  /** Hooks of a slice, in parts of what the slice costs with nothing observing. */
  readonly offShare: number;
}

/** Variants take turns, one request each, so that what the machine does meanwhile meets all of them. */
export async function measureObservers(
  requests: number,
  { warmUps = WARM_UP_REQUESTS, counts = COUNTS } = {},
): Promise<ObserveFigures> {
  const clock = new SystemClock();
  const silent = { write: () => {} };
  const variants: Record<ObserveVariant, ObservationOptions | null> = {
    off: null,
    detached: { config: { metrics: true, tracing: true } },
    logs: { logger: createLogger({ stream: silent }) },
    metrics: { config: { metrics: true, tracing: false } },
    // No tracer provider: what a request costs that is not sampled.
    tracing: { config: { metrics: false, tracing: true } },
    all: { config: { metrics: true, tracing: true }, logger: createLogger({ stream: silent }) },
  };
  const loop = await ObservedLoop.open();
  const observations = new Map<ObserveVariant, Observation | null>();
  for (const [variant, options] of Object.entries(variants) as [ObserveVariant, ObservationOptions | null][])
    observations.set(variant, options === null ? null : new Observation({ ...options, clock }));
  /** Observes both ends by one variant while `run` runs. */
  const observed = async (variant: ObserveVariant, run: () => number | Promise<number>): Promise<number> => {
    const observation = observations.get(variant) ?? null;
    const detach = [loop.context, loop.generation].map((transceiver) => observation?.attach({ transceiver }));
    if (variant === 'detached') for (const take of detach) take?.();
    const measured = await run();
    // Pages go back a turn after the outcome.
    await clock.nextTurn();
    for (const take of detach) take?.();
    return measured;
  };
  const timed = (): number => {
    const startMs = clock.now();
    loop.run();
    return ((clock.now() - startMs) * 1e3) / SLICES_PER_REQUEST;
  };
  try {
    const order = [...observations.keys()];
    const times = new Map(order.map((variant) => [variant, [] as number[]]));
    for (let round = -warmUps; round < requests; round += 1) {
      for (let turn = 0; turn < order.length; turn += 1) {
        const variant = order[(turn + round + warmUps) % order.length] as ObserveVariant;
        const sliceUs = await observed(variant, timed);
        if (round >= 0) times.get(variant)?.push(sliceUs);
      }
    }
    const rows: ObserveRow[] = [];
    for (const variant of order) {
      rows.push({
        variant,
        slicesPerRequest: SLICES_PER_REQUEST,
        sliceUs: percentilesOf(times.get(variant) ?? []) as Percentiles,
        sliceBytes: await observed(variant, () => allocatedPerSlice(loop, clock, counts)),
      });
    }
    const hookNs = measureHook(clock);
    const off = rows[0]?.sliceUs.p50 ?? Number.POSITIVE_INFINITY;
    return { rows, hookNs, offShare: (HOOKS_PER_SLICE * hookNs) / 1e3 / off };
  } finally {
    for (const observation of observations.values()) observation?.close();
    await loop.close();
  }
}

/** Median of several counts; nothing is collected inside one as long as the young generation has room, and a count that shrank is none. */
async function allocatedPerSlice(loop: ObservedLoop, clock: SystemClock, tries: number): Promise<number> {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const counts: number[] = [];
  for (let count = 0; count < tries; count += 1) {
    collect();
    const before = process.memoryUsage().heapUsed;
    for (let request = 0; request < REQUESTS_PER_TURN; request += 1) loop.run();
    const bytes = process.memoryUsage().heapUsed - before;
    if (bytes > 0) counts.push(bytes / REQUESTS_PER_TURN / SLICES_PER_REQUEST);
    await clock.nextTurn();
  }
  return percentilesOf(counts)?.p50 ?? 0;
}

/** What `observers.current?.onX(...)` costs while nobody observes, less the loop around it. */
function measureHook(clock: SystemClock): number {
  const observers = new TransferObservers(() => {});
  let called = 0;
  const tries: number[] = [];
  for (let attempt = 0; attempt < 9; attempt += 1) {
    const startMs = clock.now();
    for (let i = 0; i < HOOK_CALLS; i += 1) {
      if (observers.current !== null) called += 1;
    }
    tries.push(((clock.now() - startMs) * 1e6) / HOOK_CALLS);
  }
  return called > 0 ? Number.NaN : (percentilesOf(tries)?.p50 ?? Number.NaN);
}
