import { decodeFrame, encodeFrame, type Message } from '../../../src/wire/index.js';
import type { Cluster } from '../cluster/cluster.js';
import { DONE, delay, lose, plan, request, type ScenarioGroup, transfers } from './scenario.js';

const FIRST_RID = 1n << 42n;

/** Every machine has a lane for notes. */
function withNotes({ servers }: Cluster): void {
  for (const { agent } of servers) agent.carriesNotes = true;
}

/** The agent of a context server says this to the agent of the first generation server, as if its user had armed it. */
function note(cluster: Cluster, context: number, bytes: Uint8Array): void {
  const from = cluster.contexts[context]?.server.agent.name ?? '';
  cluster.generations[0]?.server.agent.hearNote(from, bytes);
}

/** The report of DONE that request 1 will be due: request 0, which is over, had the same prompt. */
function doneAhead({ book, tickets }: Cluster): Message {
  const { message } = decodeFrame(book.questions.get(FIRST_RID + 1n) ?? new Uint8Array());
  const done = tickets.doneOf(FIRST_RID);
  if (message.type !== 'REQUEST_DATA' || done === null) throw new Error('request 1 is not asked for, or 0 not done');
  const { rid, ticket } = message;
  const sums = { slices: done.slices, bytes: done.bytes };
  return { type: 'WRITER_REPORT', rid, ticket, outcome: 'DONE', ...sums, drained: true, errorCode: '', message: '' };
}

const TWO_CONTEXTS = { contexts: 2, auxSlots: 16 } as const;
/** Both contexts are known to the generation server, and what is asked at 400 ms is written by 700 ms. */
const SLOWLY = [
  request(0, { style: 'context_first' }),
  request(2, { context: 1, atMs: 100 }),
  request(1, { atMs: 400, style: 'context_first' }),
];
const SLOW_WRITES = transfers('transfer', { skip: 1, count: 1, durationMs: 300 });

export const NOTED: ScenarioGroup = {
  group: 'notes: what an agent says ahead of the frame',
  scenarios: [
    {
      name: 'a receive that a note has told DONE does not wait for the frame',
      references: ['simulator, mutant: notes say nothing'],
      plan: plan([request(0)], [delay('WRITER_REPORT', 900)]),
      prepare: withNotes,
      expect: { 0: { ...DONE, withinMs: 400 } },
      counters: { notes_sent: 1, notes_received: 1, 'after_note:WRITER_REPORT': 1 },
    },
    {
      name: 'the frame that follows a note is repeated until it is acknowledged',
      references: ['simulator, mutant: who hears DONE by a note is told no more by a frame'],
      plan: plan([request(0)], [lose('WRITER_REPORT', 2)]),
      prepare: withNotes,
      expect: { 0: DONE },
      counters: { notes_sent: 1, 'after_note:WRITER_REPORT': 1 },
    },
    {
      name: 'a request cancelled beside a note whose write never ends is cancelled on both sides at once',
      references: ['simulator, seeds 895, 1128, 13169: a cancel while a note was under way'],
      plan: plan(
        [request(0, { style: 'context_first' })],
        [transfers('hang', { tailMs: 700 }), { kind: 'cancel', request: 0, by: 'context', afterMs: 100 }],
      ),
      prepare: withNotes,
      expect: { 0: { context: 'cancelled', generation: 'failed', withinMs: 1000 } },
      counters: { notes_unsent: 1 },
    },
    {
      name: 'a note is believed of the process alone that speaks, about its own ticket, and only when it is a report',
      references: ['review: a note has no connection of its own'],
      plan: plan(SLOWLY, [SLOW_WRITES], TWO_CONTEXTS),
      prepare: (cluster) => {
        withNotes(cluster);
        cluster.scheduler.at(450, null, () => {
          const done = doneAhead(cluster);
          note(cluster, 1, encodeFrame(done, { incarnation: 0x1002n }));
          note(cluster, 0, encodeFrame(done, { incarnation: 0x7777n }));
          const { rid, ticket } = done as Extract<Message, { type: 'WRITER_REPORT' }>;
          note(cluster, 0, encodeFrame({ type: 'ACCEPTED', rid, ticket }, { incarnation: 0x1001n }));
          note(cluster, 0, Uint8Array.of(1, 2, 3));
        });
      },
      expect: { 0: DONE, 1: DONE, 2: DONE },
      counters: {
        'stale:WRITER_REPORT': 1,
        'notes_refused:incarnation': 1,
        'notes_refused:type': 1,
        'notes_refused:frame': 1,
      },
    },
  ],
  byDesign: [],
};
