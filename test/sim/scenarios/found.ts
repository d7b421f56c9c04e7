import { ArgumentError, SessionRetiredError } from '../../../src/errors.js';
import { createRequest } from '../../../src/executor/create-request.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import type { Cluster } from '../cluster/cluster.js';
import { promptOf } from '../parts/prompts.js';
import {
  CONTEXT,
  DONE,
  delay,
  GENERATION,
  instance,
  lose,
  plan,
  request,
  type ScenarioGroup,
  transfers,
} from './scenario.js';

const CONTEXT_ONLY: DisaggregatedParams = {
  requestType: 'context_only',
  scheduleStyle: 'generation_first',
  ctxRequestId: null,
  disaggRequestId: null,
  ctxDpRank: null,
  ctxInfoEndpoint: null,
  firstGenTokens: [],
  draftTokens: [],
  traceparent: '',
};

/** Request 1 comes under the id of request 0 at each server, as from an orchestrator that keeps it. */
function secondKeepsTheId({ contexts, generations }: Cluster): void {
  for (const { instance } of [...contexts, ...generations]) {
    const submit = instance.submit.bind(instance);
    const ids: (bigint | null)[] = [];
    instance.submit = (leader, asked, events) => {
      ids.push(asked.params.disaggRequestId);
      const disaggRequestId = (ids.length === 2 ? ids[0] : ids.at(-1)) ?? null;
      return submit(leader, { ...asked, params: { ...asked.params, disaggRequestId } }, events);
    };
  }
}

/** What the simulator found in this package, each with the smallest schedule that showed it. */
export const FOUND: ScenarioGroup = {
  group: 'found by the simulator',
  scenarios: [
    {
      name: 'a receiver that expects another prompt is refused, and both sides know within a second',
      references: [
        'simulator: its plans give both halves one prompt; by hand the sender was still open after four seconds',
      ],
      plan: plan([request(0), request(1, { atMs: 1500 })]),
      prepare: (cluster) => {
        const local = cluster.generations[0]?.server.local;
        if (local === undefined) return;
        const submit = local.submit.bind(local);
        let left = 1;
        local.submit = (asked, events) => {
          const promptTokens = left-- > 0 ? promptOf(0, 23) : asked.promptTokens;
          return submit({ ...asked, promptTokens }, events);
        };
      },
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'a second request under an id that has ended fails at both sides within a second, and the next one runs',
      references: [
        'simulator: its plans give each request an id of its own; by hand the context half waited for ever, without a clock',
      ],
      plan: plan([request(0), request(1, { atMs: 600 }), request(2, { atMs: 2400 })]),
      prepare: secondKeepsTheId,
      expect: {
        0: DONE,
        1: { context: 'failed', generation: 'failed', code: 'ERR_KVT_SESSION_RETIRED', withinMs: 1000 },
        2: DONE,
      },
    },
    {
      name: 'a second request under an id that has ended fails at both sides within a second on every rank',
      references: ['simulator: as above, where ranks agree on what has failed'],
      plan: plan([request(0), request(1, { atMs: 600 }), request(2, { atMs: 2400 })], [], {
        context: instance(2),
        generation: instance(2),
        kvHeads: 2,
      }),
      prepare: secondKeepsTheId,
      expect: {
        0: DONE,
        1: { context: 'failed', generation: 'failed', code: 'ERR_KVT_SESSION_RETIRED', withinMs: 1000 },
        2: DONE,
      },
    },
    {
      name: 'a generation half that its cache manager refuses is given up at the context server within a second',
      references: ['simulator: the scenario above, with a prompt that the manager did not take'],
      plan: plan([request(0), request(1, { atMs: 1500 })]),
      prepare: (cluster) => {
        const cache = cluster.generations[0]?.server.cache;
        if (cache === undefined) return;
        const addRequest = cache.addRequest.bind(cache);
        let left = 1;
        cache.addRequest = (...asked) => {
          if (left-- > 0) throw new ArgumentError('not this one');
          return addRequest(...asked);
        };
      },
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'a generation half that cannot be asked for is given up at the context server within a second',
      references: ['simulator: as above'],
      plan: plan([request(0), request(1, { atMs: 1500 })]),
      prepare: (cluster) => {
        const transceiver = cluster.generations[0]?.server.transceiver;
        if (transceiver === undefined) return;
        const ask = transceiver.requestAndReceiveAsync.bind(transceiver);
        let left = 1;
        transceiver.requestAndReceiveAsync = (asked) => {
          if (left-- > 0) throw new ArgumentError('not this one');
          ask(asked);
        };
      },
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'a request cancelled while its last write lands does not end as done at the receiver',
      references: ['simulator, seed 650 of the first generator: a report of DONE followed one of CANCELLED'],
      plan: plan(
        [request(0)],
        [
          transfers('transfer', { skip: 3, durationMs: 40 }),
          delay('WRITER_REPORT', 60),
          { kind: 'cancel', request: 0, by: 'context', afterMs: 30 },
        ],
      ),
      expect: { 0: { context: 'cancelled', generation: 'failed', withinMs: 1000 } },
    },
    {
      name: 'a slice of a request that has ended is refused, whenever it comes',
      references: ['simulator: one random run in 400 made the session again'],
      plan: plan([request(0, { promptLen: 60 })], [{ kind: 'cancel', request: 0, by: 'generation', afterMs: 20 }], {
        msPerToken: 1,
      }),
      expect: { 0: { context: 'failed', generation: 'cancelled', withinMs: 1000 } },
      check: ({ contexts, journal }) => {
        const [ended] = contexts[0]?.server.watched.requests ?? [];
        if (ended === undefined) throw new Error('no request was watched');
        try {
          contexts[0]?.server.transceiver.sendEarlyPrefix(
            { ...ended, prepopulatedLen: 4, chunkStart: 4, cancelRequested: false },
            { after: null },
          );
        } catch (error) {
          if (error instanceof SessionRetiredError) return;
        }
        journal.violation('I2 twice', 'a slice of an ended request was not refused');
      },
    },
    {
      name: 'a peer that was lost asks again: its ticket keeps the report it has, drained or not',
      references: ['simulator: a stranger’s question was answered as drained while its earlier writes went on'],
      plan: plan(
        [request(0, { promptLen: 60 })],
        [
          lose('ACCEPTED', 3),
          lose('SLICE_RESULT', 3),
          transfers('fail-undrained', { durationMs: 235, tailMs: 900 }),
          { kind: 'break', from: CONTEXT, to: GENERATION, atMs: 200 },
        ],
        { msPerToken: 1 },
      ),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 2500 } },
    },
    {
      name: 'a late copy of a question from before the greeting is not answered with writes',
      references: ['simulator, seed 7011 of the first generator'],
      plan: plan(
        // Several, because a frame on its way may go down with its connection.
        [request(0), ...[1, 2, 3].map((number) => request(number, { atMs: 400 + 200 * number, promptLen: 60 }))],
        [
          ...[300, 700, 900].map((atMs) => ({ kind: 'break', from: CONTEXT, to: GENERATION, atMs }) as const),
          { kind: 'frame', type: 'REQUEST_DATA', skip: 1, count: 9, copies: 30, delayMs: 0 },
        ],
      ),
      expect: { 0: DONE, 1: DONE, 2: DONE, 3: DONE },
    },
    {
      name: 'a writer that greets its receiver before it has answered it is asked when it has answered',
      references: [
        'simulator, seeds 3907, 5403, 14397: questions that were refused as a stranger’s failed all requests there',
      ],
      plan: plan([request(0), request(2)], [lose('HELLO', 1, 4)], {
        context: instance(1, [1, 2]),
        generation: instance(2),
        kvHeads: 2,
      }),
      expect: { 0: DONE, 2: DONE },
    },
    {
      name: 'a request that ends before it is known whose it is ends for those who asked for it',
      references: ['simulator, seed 3789: its receivers waited until their queue clock ran out'],
      plan: plan(
        [request(0, { context: 1 }), request(2, { atMs: 200, lagMs: 20 })],
        [{ kind: 'cancel', request: 2, by: 'context', afterMs: 40 }],
        { contexts: 2, context: instance(2), generation: instance(4, [3], 2), kvHeads: 4 },
      ),
      expect: { 0: DONE, 2: { context: 'cancelled', generation: 'failed', withinMs: 1000 } },
    },
    {
      name: 'ranks that join their instance late keep the pages of their siblings until they have their own',
      references: ['simulator, seeds 10207, 12616, 16137, 17905, 18203, 18527: counted as held too long'],
      plan: plan([request(0), request(1, { style: 'context_first' })], [], {
        context: instance(1),
        generation: instance(4),
        latent: true,
        kvHeads: 1,
        joinWithinMs: 3000,
        limits: { transferQueueTimeoutMs: 4500, noProgressTimeoutMs: 2500, kvTransferTimeoutMs: 6000 },
      }),
      expect: { 0: DONE, 1: DONE },
    },
    {
      name: 'a rank that waits for an aux slot while its siblings ask ends by its own clock, whatever they were told',
      references: ['simulator, seed 25741: counted as told too late'],
      plan: plan(
        [request(0), request(3, { entrance: 'bare', context: 1, atMs: 600, lagMs: -1500 })],
        [transfers('never')],
        { contexts: 2, context: instance(1), generation: instance(2), kvHeads: 2, auxSlots: 1 },
      ),
      expect: { 0: { context: 'failed', generation: 'failed' }, 3: { context: 'failed', generation: 'failed' } },
    },
    {
      name: 'a receiver that gives up before it knew the context server tells it all the same',
      references: ['review: no schedule showed who is no peer yet not being told'],
      plan: plan(
        // The only aux slot is taken by a transfer from another context server.
        [request(0, { promptLen: 60 }), request(1, { atMs: 60, context: 1 })],
        [{ kind: 'cancel', request: 1, by: 'generation', afterMs: 80 }],
        { contexts: 2, auxSlots: 1, msPerToken: 15 },
      ),
      expect: { 0: DONE, 1: { context: 'failed', generation: 'cancelled', withinMs: 1000 } },
    },
    {
      name: 'a copy of a question that comes after its cancel is answered as the cancel was, and does not keep the other cancels out',
      references: ['review: no schedule showed that the answer to a question has to be remembered'],
      plan: plan(
        [request(0), request(2, { atMs: 400, lagMs: 100, promptLen: 60 })],
        [
          { kind: 'cancel', request: 2, by: 'generation', afterMs: 4 },
          // One rank's cancel comes among the copies of its question, its sibling's after all of them.
          { kind: 'frame', type: 'REQUEST_DATA', skip: 4, count: 4, copies: 30, delayMs: 0 },
          { kind: 'frame', type: 'CANCEL', skip: 2, count: 2, copies: 1, delayMs: 10 },
        ],
        { context: instance(2, [3], 2), generation: instance(2), kvHeads: 2, msPerToken: 1 },
      ),
      expect: { 0: DONE, 2: { context: 'failed', generation: 'cancelled', withinMs: 500 } },
    },
    {
      name: 'a context server that was replaced unnoticed while nobody needed it costs no request',
      references: [
        'simulator, seeds 8666, 12082, 21495, 25959: each DP group of the receivers lost the first request it had',
      ],
      plan: plan(
        [0, 1, 2, 3].map((number) =>
          request(number, { atMs: (number < 2 ? 10 : 3000) + 200 * number, entrance: 'coordinated' }),
        ),
        [{ kind: 'crash', host: CONTEXT, atMs: 1000, restartAfterMs: 500, noticed: false }],
        { generation: { tpSize: 2, dpSize: 2, cpSize: 1, layersPerStage: [1], blockLayout: 'HND' } },
      ),
      expect: Object.fromEntries([0, 1, 2, 3].map((number) => [number, { coordinator: 'completed', withinMs: 200 }])),
    },
    {
      name: 'one of several context ranks was replaced unnoticed while nobody needed it, its siblings with notice',
      references: ['simulator, seed 25959'],
      plan: plan(
        [request(0, { entrance: 'coordinated' }), request(1, { atMs: 3000, entrance: 'coordinated' })],
        [{ kind: 'crash', host: CONTEXT, rank: 1, atMs: 1000, restartAfterMs: 500, noticed: false }],
        {
          kvHeads: 2,
          context: { tpSize: 2, dpSize: 1, cpSize: 1, layersPerStage: [1], blockLayout: 'HND' },
        },
      ),
      expect: {
        0: { coordinator: 'completed', withinMs: 200 },
        1: { coordinator: 'completed', withinMs: 200 },
      },
    },
    {
      name: 'a context server that is replaced after it has answered, before it is asked, says at once that it has nothing',
      references: ['review: its successor kept the question until the queue clock ran out'],
      plan: plan(
        [request(0, { style: 'context_first', lagMs: 400 }), request(1, { atMs: 2000 })],
        [{ kind: 'crash', host: CONTEXT, atMs: 200, restartAfterMs: 50, noticed: false }],
      ),
      expect: { 0: { generation: 'failed', withinMs: 800, code: 'ERR_KVT_TRANSPORT' }, 1: DONE },
      counters: { 'request_data_refused:ERR_KVT_SESSION_RETIRED': 1 },
    },
    {
      name: 'the answer to a question that was accepted before its request came is lost: it is said again',
      references: [
        'review: it was sent once, and its receiver, which was accepted, asked no more until it had missed a sign of life',
      ],
      plan: plan([request(0, { entrance: 'generation-only' })], [lose('WRITER_REPORT', 1)], {
        limits: { transferQueueTimeoutMs: 60_000, noProgressTimeoutMs: 40_000, kvTransferTimeoutMs: 60_000 },
      }),
      expect: { 0: { generation: 'failed', code: 'ERR_KVT_TRANSFER_CANCELLED', withinMs: 500 } },
      // Its context half is cancelled before it has begun.
      prepare: ({ scheduler, contexts, lives }) => {
        const server = contexts[0]?.server;
        scheduler.at(40, server?.process ?? null, () => {
          const disaggRequestId = lives[0]?.rid ?? null;
          const disagg = { ...CONTEXT_ONLY, disaggRequestId };
          server?.transceiver.cancelRequest(
            createRequest({ id: 9_000_000, promptTokens: Uint32Array.of(1), maxTokens: 1, disagg }),
            'its user left',
          );
        });
      },
    },
    {
      name: 'a server that shuts down stays until its receiver has acknowledged a report that was lost',
      references: ['review: it left at once, so that a request that it had completed failed at the receiver'],
      plan: plan(
        [request(0)],
        [lose('WRITER_REPORT', 1), { kind: 'shutdown', host: CONTEXT, atMs: 120, restartAfterMs: null }],
      ),
      expect: { 0: { ...DONE, withinMs: 500 } },
    },
    {
      name: 'a receiver that took the place of the one that had asked is no loss of the request when it goes too',
      references: ['simulator, seed 28963: the rules took the question of the one for one of the other'],
      plan: plan(
        [request(0, { lagMs: 60 }), request(1, { atMs: 100 })],
        [
          { kind: 'crash', host: GENERATION, atMs: 40, restartAfterMs: 10, noticed: true },
          { kind: 'crash', host: GENERATION, atMs: 300, restartAfterMs: null, noticed: true },
        ],
      ),
      expect: { 0: { context: 'failed', generation: 'failed' }, 1: DONE },
    },
    {
      name: 'pages are retained from when the receive ended on their rank, not from when its siblings let it say so',
      references: [
        'simulator, seed 29320: counted from when its executor, which waited for a sibling, took the outcome',
      ],
      plan: plan(
        [request(0, { promptLen: 60, entrance: 'coordinated' })],
        [
          // Before it has asked, so that its own pages wait for nobody.
          { kind: 'stop', host: GENERATION, rank: 1, atMs: 11, ms: 2500 },
          // The coordinator cancels, so that the other rank waits in the exchange when it finds out.
          { kind: 'crash', host: CONTEXT, atMs: 60, restartAfterMs: 25, noticed: false },
        ],
        { context: instance(1), generation: instance(2), kvHeads: 2, msPerToken: 15 },
      ),
      expect: { 0: { coordinator: 'failed' } },
      counters: { released_unproven: 1 },
    },
  ],
  byDesign: [],
};
