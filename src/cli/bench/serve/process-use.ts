/** What each process of a server holds when nothing runs. */
export interface ProcessUse {
  readonly process: string;
  readonly fds: number;
  readonly heapBytes: number;
  /** Requests, sessions and pages that somebody still holds; 0 when nothing runs. */
  readonly held: number;
  readonly steps: number;
}

const HELD = [
  'kvt_serve_requests_live',
  'kvt_serve_requests_queued',
  'kvt_worker_requests_live',
  'kvt_worker_send_sessions',
  'kvt_worker_receive_sessions',
  'kvt_worker_held_requests',
  'kvt_worker_pinned_slots',
  'kvt_worker_owned_slots',
];
/** Sockets and files that come and go with connections, a new worker's peers included. */
const SPARE_FDS = 24;
/** Compiled code, metrics and the allocator's slack; a leak of a request costs kilobytes, and there are thousands of them. */
const SPARE_HEAP_BYTES = 24 * 1024 * 1024;

/** @param metrics by `name{labels}` */
export function processUses(metrics: ReadonlyMap<string, number>): readonly ProcessUse[] {
  const names = new Set<string>();
  for (const key of metrics.keys()) {
    const name = /worker="([^"]+)"/.exec(key)?.[1];
    if (name !== undefined) names.add(name);
  }
  return [...names].map((name) => {
    const sum = (...wanted: readonly string[]): number => {
      let total = 0;
      for (const [key, value] of metrics)
        if (key.includes(`worker="${name}"`) && wanted.includes(key.slice(0, key.indexOf('{')))) total += value;
      return total;
    };
    return {
      process: name,
      fds: sum('process_open_fds'),
      heapBytes: sum('nodejs_heap_size_used_bytes'),
      held: sum(...HELD),
      steps: sum('kvt_worker_steps'),
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
