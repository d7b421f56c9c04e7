import { expect, it } from 'vitest';
import type { TxSession } from '../../../src/session/tx-session.js';
import { txTimings } from '../../../src/session/tx-timings.js';

const slice = (seq: number) => ({
  seq,
  beginBlock: seq,
  endBlock: seq + 1,
  submittedAtMs: 10 * seq,
  isLast: seq === 1,
});

const task = (seq: number, postedAtMs: number | null, finishedAtMs: number | null, heardAtMs: number | null) => ({
  slice: slice(seq),
  bytesPlanned: 100,
  bytesDone: finishedAtMs === null ? 0 : 100,
  postedAtMs,
  finishedAtMs,
  heardAtMs,
});

/** Two receivers, of which neither is the first or the last in everything. */
const session = {
  createdAtMs: 1,
  slices: [slice(0), slice(1)],
  receivers: new Map([
    [
      'a',
      {
        tasks: [task(0, 7, 20, 21), task(1, 12, 30, 31)],
        auxTask: { postedAtMs: 33, finishedAtMs: 34 },
        reportedAtMs: 45,
      },
    ],
    ['b', { tasks: [task(0, 5, 22, 40), task(1, 14, 28, 29)], auxTask: null, reportedAtMs: 41 }],
    ['c', { tasks: [task(0, null, null, null)], auxTask: { postedAtMs: 32, finishedAtMs: 36 }, reportedAtMs: null }],
  ]),
} as unknown as TxSession;

it('of several receivers: the first post, and the last of everything that the tail waits for', () => {
  const timings = txTimings(session, 50);
  expect(timings).toMatchObject({
    startedAtMs: 1,
    firstPostAtMs: 5,
    lastSliceSubmittedAtMs: 10,
    settledAtMs: 50,
    slices: 2,
    bytesPlanned: 500,
    bytesDone: 400,
    tail: { lastHeardAtMs: 40, auxPostedAtMs: 33, auxFinishedAtMs: 36, reportedAtMs: 45 },
  });
  expect(
    timings.perSlice.map(({ seq, postedAtMs, finishedAtMs, bytes }) => [seq, postedAtMs, finishedAtMs, bytes]),
  ).toEqual([
    [0, 7, 20, 100],
    [1, 12, 30, 100],
    [0, 5, 22, 100],
    [1, 14, 28, 100],
    [0, null, null, 0],
  ]);
});
