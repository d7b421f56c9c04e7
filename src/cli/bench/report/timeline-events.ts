import type { RequestTimeline, TtftRow, TtftSample } from '../output-contract.js';
import { intoLanes, type Span } from './lanes.js';
import { type AnyOutput, completedOf, requestRows } from './report-output.js';

/** Requests beyond the first so many events are left out, which the file says. */
const MOST_EVENTS = 200_000;

const COORDINATOR = 1;
const CONTEXT = 2;
const GENERATION = 3;

/** Thread of every process. */
const SESSIONS = 1;
/** Threads of the context server: the lanes of its engine from here on, however many there are, then those of its slices. */
const FIRST_LANE = 2;

/** One event of the JSON trace format that Perfetto and Chromium read. Times in µs. */
export interface TraceEvent {
  readonly name: string;
  readonly cat: string;
  readonly ph: 'X' | 'b' | 'e' | 's' | 'f' | 'M';
  readonly pid: number;
  readonly tid: number;
  readonly ts: number;
  readonly dur?: number;
  /** Of arrows: one in the whole file. */
  readonly id?: string;
  /** Of sessions: one within the process. With `id` viewers would draw a request's spans of all processes in the process of the first. */
  readonly id2?: { readonly local: string };
  readonly bp?: 'e';
  readonly args?: Readonly<Record<string, unknown>>;
}

export interface TraceFile {
  readonly displayTimeUnit: 'ms';
  readonly otherData: Readonly<Record<string, string | number>>;
  readonly traceEvents: readonly TraceEvent[];
}

interface Piece extends Span {
  readonly name: string;
  readonly args: Readonly<Record<string, unknown>>;
  /** Chunk and its slices have it in common. */
  readonly flow: string;
}

/**
 * The requests of all rows on one time axis: the coordinator's sessions, the context server's chunks and slices, with an arrow from each
 * chunk to its slices, and the generation server's decodes. Only requests whose timelines were kept.
 */
export function timelineEvents(output: AnyOutput): TraceFile {
  const events: TraceEvent[] = [];
  const computed: Piece[] = [];
  const moved: Piece[] = [];
  let [drawn, leftOut] = [0, 0];
  requestRows(output).forEach((row, index) => {
    for (const sample of completedOf(row)) {
      const timeline = sample.timeline ?? null;
      if (timeline === null || drawn > MOST_EVENTS) {
        leftOut++;
        continue;
      }
      const id = `${index}/${sample.request}`;
      const sessions = sessionEvents(row, sample, id);
      const pieces = [computePieces(row, sample, timeline, id), slicePieces(row, sample, timeline, id)] as const;
      events.push(...sessions);
      computed.push(...pieces[0]);
      moved.push(...pieces[1]);
      drawn += sessions.length + 2 * (pieces[0].length + pieces[1].length);
    }
  });
  const computeLanes = intoLanes(computed);
  const lanes = [
    ...laneEvents(computeLanes, FIRST_LANE, 'compute'),
    ...laneEvents(intoLanes(moved), FIRST_LANE + computeLanes.length, 'slices'),
  ];
  const sorted = [...events, ...lanes, ...flowEvents(lanes)].sort((a, b) => a.ts - b.ts || ORDER[a.ph] - ORDER[b.ph]);
  return {
    displayTimeUnit: 'ms',
    otherData: {
      bench: output.bench,
      version: output.version,
      commit: output.commit,
      startedAt: output.startedAt,
      requestsLeftOut: leftOut,
    },
    traceEvents: [...names(lanes, FIRST_LANE + computeLanes.length), ...sorted],
  };
}

/** Of events at one time: what ends comes before what begins, and a slice before the arrows that touch it. */
const ORDER: Readonly<Record<TraceEvent['ph'], number>> = { M: 0, e: 1, b: 2, X: 3, s: 4, f: 5 };

/** Whole microseconds, so that what was at one time stays at one time. */
function micros(ms: number): number {
  return Math.round(ms * 1000);
}

function sessionEvents(row: TtftRow, sample: TtftSample, id: string): readonly TraceEvent[] {
  const { arrivedAtMs, ttftMs, queueMs, finishedMark, promptTokens, contextCachedTokens, generatedTokens } = sample;
  const at = (mark: number): number => micros(arrivedAtMs + mark);
  const name = `${row.variant} #${sample.request}`;
  const args = {
    promptTokens,
    contextCachedTokens,
    ttftMs,
    exposedTailMs: sample.exposedTailMs,
    bytes: sample.bytesSent,
  };
  const span = (
    pid: number,
    cat: string,
    what: string,
    begin: number,
    end: number,
    more = {},
  ): readonly TraceEvent[] => {
    const common = { name: what, cat, pid, tid: SESSIONS, id2: { local: id } };
    return [
      { ...common, ph: 'b', ts: at(begin), args: more },
      { ...common, ph: 'e', ts: Math.max(at(begin), at(end)) },
    ];
  };
  return [
    ...span(COORDINATOR, 'request', name, 0, finishedMark ?? ttftMs, args),
    ...span(CONTEXT, 'queue', `${name} waits`, 0, queueMs),
    ...span(CONTEXT, 'session', `${name} session`, queueMs, sample.lastByteMark ?? ttftMs),
    ...span(GENERATION, 'session', `${name} receives`, sample.waitMs ?? 0, ttftMs),
    ...(generatedTokens > 1
      ? span(GENERATION, 'decode', `${name} decodes`, ttftMs, finishedMark ?? ttftMs, { generatedTokens })
      : []),
  ];
}

function computePieces(
  { variant }: TtftRow,
  sample: TtftSample,
  { chunks }: RequestTimeline,
  id: string,
): readonly Piece[] {
  return chunks.map(({ tokenBegin, tokenEnd, startMark, endMark }, index) => ({
    name: `#${sample.request} chunk ${index}`,
    begin: micros(sample.arrivedAtMs + startMark),
    end: micros(sample.arrivedAtMs + endMark),
    args: { variant, tokenBegin, tokenEnd },
    flow: `${id}/${index}`,
  }));
}

function slicePieces(
  { variant }: TtftRow,
  sample: TtftSample,
  { slices }: RequestTimeline,
  id: string,
): readonly Piece[] {
  return slices.flatMap(
    ({ kind, chunk, seq, rank, bytes, submittedMark, postedMark, finishedMark }): readonly Piece[] => {
      if (postedMark === null || finishedMark === null) return [];
      return [
        {
          name: `#${sample.request} ${kind === 'early-prefix' ? 'early prefix' : `slice ${seq}`}`,
          begin: micros(sample.arrivedAtMs + postedMark),
          end: micros(sample.arrivedAtMs + finishedMark),
          args: { variant, kind, rank, bytes, submittedMs: sample.arrivedAtMs + submittedMark },
          flow: chunk === null ? '' : `${id}/${chunk}`,
        },
      ];
    },
  );
}

/** Complete events may not overlap on a thread: each lane is one. */
function laneEvents(
  lanes: readonly (readonly Piece[])[],
  firstLane: number,
  cat: 'compute' | 'slices',
): readonly (TraceEvent & { readonly flow: string })[] {
  return lanes.flatMap((lane, index) =>
    lane.map(({ name, begin, end, args, flow }) => ({
      name,
      cat,
      ph: 'X' as const,
      pid: CONTEXT,
      tid: firstLane + index,
      ts: begin,
      dur: end - begin,
      args,
      flow,
    })),
  );
}

/** From the end of a chunk to the begin of each slice that carries it. */
function flowEvents(lanes: readonly (TraceEvent & { readonly flow: string })[]): readonly TraceEvent[] {
  const chunks = new Map(lanes.filter(({ cat }) => cat === 'compute').map((event) => [event.flow, event]));
  return lanes
    .filter(({ cat }) => cat === 'slices')
    .flatMap((slice, index): readonly TraceEvent[] => {
      const chunk = chunks.get(slice.flow);
      // A slice that a GPU event releases may be posted inside its chunk's time; an arrow cannot point back.
      const leaves = chunk === undefined ? 0 : Math.min(chunk.ts + Math.max(0, (chunk.dur ?? 0) - 1), slice.ts);
      if (chunk === undefined || leaves < chunk.ts) return [];
      const common = { name: 'chunk to slice', cat: 'flow', id: String(index) };
      return [
        { ...common, ph: 's', pid: chunk.pid, tid: chunk.tid, ts: leaves },
        { ...common, ph: 'f', bp: 'e', pid: slice.pid, tid: slice.tid, ts: slice.ts },
      ];
    });
}

function names(lanes: readonly TraceEvent[], firstSliceLane: number): readonly TraceEvent[] {
  const name = (what: 'process_name' | 'thread_name', pid: number, tid: number, text: string): TraceEvent => ({
    name: what,
    cat: '__metadata',
    ph: 'M',
    pid,
    tid,
    ts: 0,
    args: { name: text },
  });
  const threads = [...new Set(lanes.map(({ tid }) => tid))].sort((a, b) => a - b);
  return [
    name('process_name', COORDINATOR, 0, 'coordinator'),
    name('process_name', CONTEXT, 0, 'context server'),
    name('process_name', GENERATION, 0, 'generation server'),
    ...[COORDINATOR, CONTEXT, GENERATION].map((pid) => name('thread_name', pid, SESSIONS, 'sessions')),
    ...threads.map((tid) =>
      name(
        'thread_name',
        CONTEXT,
        tid,
        tid < firstSliceLane ? `executor, compute ${tid - FIRST_LANE + 1}` : `slices ${tid - firstSliceLane + 1}`,
      ),
    ),
  ];
}
