import type { TraceEvent, TraceFile } from '../../src/cli/bench/report/timeline-events.js';

/**
 * What a viewer of the JSON trace format needs and does not say: times in order, no overlap on a thread, each begin with its end, each arrow
 * with both its ends inside a slice of its thread, a name for each thread, and spans that are drawn where they say. Throws for the first that does not hold.
 */
export function validateTimeline(file: TraceFile): void {
  const fail = (why: string, event: TraceEvent): never => {
    throw new Error(`${why}: ${JSON.stringify(event)}`);
  };
  let lastTs = 0;
  const onThread = new Map<string, TraceEvent[]>();
  const begun = new Map<string, TraceEvent>();
  const drawnIn = new Map<string, number>();
  const arrows = new Map<string, TraceEvent>();
  const named = new Set<string>();
  const threadOf = ({ pid, tid }: TraceEvent): string => `${pid}/${tid}`;
  for (const event of file.traceEvents) {
    if (!Number.isSafeInteger(event.ts) || event.ts < 0) fail('a time that is no whole microsecond', event);
    if (event.ph === 'M') {
      named.add(event.name === 'process_name' ? String(event.pid) : threadOf(event));
      continue;
    }
    if (event.ts < lastTs) fail('goes back in time', event);
    lastTs = event.ts;
    if (!named.has(String(event.pid)) || !named.has(threadOf(event))) fail('has no named process and thread', event);
    const track = trackOf(event);
    const key = `${track} ${event.name}`;
    switch (event.ph) {
      case 'X': {
        const before = onThread.get(threadOf(event)) ?? [];
        const last = before.at(-1);
        if (!Number.isSafeInteger(event.dur) || (event.dur ?? -1) < 0) fail('a duration below zero', event);
        if (last !== undefined && last.ts + (last.dur ?? 0) > event.ts) fail('overlaps the slice before', event);
        onThread.set(threadOf(event), [...before, event]);
        break;
      }
      case 'b':
        if (begun.has(key)) fail('begins twice', event);
        if (!drawnIn.has(track)) drawnIn.set(track, event.pid);
        if (drawnIn.get(track) !== event.pid) fail('is drawn in another process', event);
        begun.set(key, event);
        break;
      case 'e':
        if (!begun.delete(key)) fail('ends what did not begin', event);
        break;
      case 's':
        if (arrows.has(String(event.id))) fail('an arrow that starts twice', event);
        arrows.set(String(event.id), event);
        break;
      case 'f': {
        const start = arrows.get(String(event.id)) ?? fail('an arrow without a start', event);
        arrows.delete(String(event.id));
        for (const end of [start, event]) {
          const slices = onThread.get(threadOf(end)) ?? [];
          if (!slices.some(({ ts, dur = 0 }) => ts <= end.ts && end.ts <= ts + dur))
            fail('an arrow that touches no slice', end);
        }
      }
    }
  }
  const [open] = [...begun.values(), ...arrows.values()];
  if (open !== undefined) fail('is not ended', open);
}

/** Viewers know an asynchronous span by its category and id, and by its process only when the id is a local one. */
function trackOf({ pid, cat, id, id2 }: TraceEvent): string {
  return id2 === undefined ? `${cat} ${id}` : `${pid} ${cat} ${id2.local}`;
}
