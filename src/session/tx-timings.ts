import type { SliceTiming, TailTimings, TransferTimings } from './cache-transceiver.js';
import type { TxSession } from './tx-session.js';

/** What a report or a timeline wants to know of one request's transfer. */
export function txTimings(session: TxSession, nowMs: number): TransferTimings {
  const tasks = [...session.receivers.values()].flatMap((receiver) => receiver.tasks);
  const perSlice = tasks.flatMap((task): SliceTiming[] =>
    task.slice === null
      ? []
      : [
          {
            seq: task.slice.seq,
            beginBlock: task.slice.beginBlock,
            endBlock: task.slice.endBlock,
            bytes: task.bytesDone,
            submittedAtMs: task.slice.submittedAtMs,
            postedAtMs: task.postedAtMs,
            finishedAtMs: task.finishedAtMs,
          },
        ],
  );
  const posted = perSlice.flatMap(({ postedAtMs }) => (postedAtMs === null ? [] : [postedAtMs]));
  const last = session.slices.at(-1);
  return {
    startedAtMs: session.createdAtMs,
    firstPostAtMs: posted.length === 0 ? null : Math.min(...posted),
    lastSliceSubmittedAtMs: last?.isLast === true ? last.submittedAtMs : null,
    settledAtMs: nowMs,
    slices: session.slices.length,
    bytesPlanned: tasks.reduce((sum, task) => sum + task.bytesPlanned, 0),
    bytesDone: tasks.reduce((sum, task) => sum + task.bytesDone, 0),
    perSlice,
    tail: tailOf(session),
  };
}

function tailOf({ receivers }: TxSession): TailTimings {
  const all = [...receivers.values()];
  const aux = all.flatMap(({ auxTask }) => auxTask ?? []);
  return {
    lastHeardAtMs: latest(all.flatMap(({ tasks }) => tasks.map(({ heardAtMs }) => heardAtMs))),
    auxPostedAtMs: latest(aux.map(({ postedAtMs }) => postedAtMs)),
    auxFinishedAtMs: latest(aux.map(({ finishedAtMs }) => finishedAtMs)),
    reportedAtMs: latest(all.map(({ reportedAtMs }) => reportedAtMs)),
  };
}

function latest(times: readonly (number | null)[]): number | null {
  const known = times.filter((time) => time !== null);
  return known.length === 0 ? null : Math.max(...known);
}
