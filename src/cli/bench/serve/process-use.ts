/** What each process of a server holds when nothing runs. */
export interface ProcessUse {
  readonly process: string;
  readonly fds: number;
  readonly heapBytes: number;
  /** Requests, sessions and pages that somebody still holds; 0 when nothing runs. */
  readonly held: number;
  readonly steps: number;
}

const HELD: readonly Wanted[] = [
  { name: 'kvt_serve_requests_live' },
  { name: 'kvt_serve_requests_queued' },
  { name: 'kv_transceiver_executor_requests' },
  { name: 'kv_transceiver_sessions' },
  { name: 'kv_transceiver_pinned_requests' },
  { name: 'kv_transceiver_coordinator_live_requests' },
  { name: 'kv_transceiver_cache_slots', state: 'pinned' },
];
/** What no request owns, and what there is. */
const UNOWNED: readonly Wanted[] = ['free', 'reusable'].map((state) => ({ name: 'kv_transceiver_cache_slots', state }));
const CAPACITY: readonly Wanted[] = [{ name: 'kv_transceiver_cache_slot_capacity' }];
const STEPS: readonly Wanted[] = [{ name: 'kv_transceiver_step_seconds_count' }];
const FDS: readonly Wanted[] = [{ name: 'process_open_fds' }];
const HEAP: readonly Wanted[] = [{ name: 'nodejs_heap_size_used_bytes' }];
/** Sockets and files that come and go with connections, a new worker's peers included. */
const SPARE_FDS = 24;
/** Compiled code, metrics and the allocator's slack; a leak of a request costs kilobytes, and there are thousands of them. */
const SPARE_HEAP_BYTES = 24 * 1024 * 1024;

/** Samples by the name of the metric, and the label `state` if it has one. */
interface Wanted {
  readonly name: string;
  readonly state?: string;
}

/** @param metrics by `name{labels}` */
export function processUses(metrics: ReadonlyMap<string, number>): readonly ProcessUse[] {
  const names = new Set<string>();
  for (const key of metrics.keys()) {
    const name = /worker="([^"]+)"/.exec(key)?.[1];
    if (name !== undefined) names.add(name);
  }
  return [...names].map((name) => {
    const own = [...metrics].filter(([key]) => key.includes(`worker="${name}"`));
    const sum = (wanted: readonly Wanted[]): number =>
      own
        .filter(([key]) =>
          wanted.some(
            (one) =>
              key.startsWith(`${one.name}{`) && (one.state === undefined || key.includes(`state="${one.state}"`)),
          ),
        )
        .reduce((total, [, value]) => total + value, 0);
    return {
      process: name,
      fds: sum(FDS),
      heapBytes: sum(HEAP),
      held: sum(HELD) + sum(CAPACITY) - sum(UNOWNED),
      steps: sum(STEPS),
    };
  });
}

/** What was not given back, in words; empty: nothing. */
export function leaksBetween(before: readonly ProcessUse[], after: readonly ProcessUse[]): readonly string[] {
  return after.flatMap((now) => {
    const then = before.find((one) => one.process === now.process);
    const leaks: string[] = [];
    if (now.held > 0) leaks.push(`${now.process} holds ${now.held} requests, sessions or pages`);
    if (then === undefined) return leaks;
    if (now.fds > then.fds + SPARE_FDS) leaks.push(`${now.process} has ${now.fds} open files, before ${then.fds}`);
    if (now.heapBytes > then.heapBytes + SPARE_HEAP_BYTES)
      leaks.push(`the heap of ${now.process} grew from ${mib(then.heapBytes)} to ${mib(now.heapBytes)} MiB`);
    return leaks;
  });
}

export function mib(bytes: number): string {
  return (bytes / 1024 / 1024).toFixed(1);
}
