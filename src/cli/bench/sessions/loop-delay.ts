import { monitorEventLoopDelay } from 'node:perf_hooks';

const RESOLUTION_MS = 1;

/** How late the event loop served a timer, in milliseconds. */
export interface LoopDelay {
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  readonly max: number;
}

/** Measures while `work` runs. */
export async function measureLoopDelay(work: () => Promise<void>): Promise<LoopDelay> {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  histogram.enable();
  try {
    await work();
  } finally {
    histogram.disable();
  }
  // What is recorded is the time between two ticks, the wanted distance included.
  const late = (ns: number): number => Math.max(0, ns / 1e6 - RESOLUTION_MS);
  const at = (percent: number): number => late(histogram.percentile(percent));
  return { p50: at(50), p90: at(90), p99: at(99), max: late(histogram.max) };
}
