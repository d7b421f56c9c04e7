import { InternalError } from '../../../src/errors.js';
import {
  all,
  CONTEXT,
  DONE,
  delay,
  GENERATION,
  plan,
  request,
  type ScenarioGroup,
  series,
  thread,
  transfers,
} from './scenario.js';

const REPOSITORY = 'NVIDIA/TensorRT-LLM';

/** Reported for TensorRT-LLM alone; what other systems share with it stands in the groups before. */
export const TRTLLM: ScenarioGroup = {
  group: 'TensorRT-LLM',
  scenarios: [
    {
      name: 'a cache manager that throws at a slice ends the request on both sides',
      references: [thread(REPOSITORY, 12542)],
      plan: plan([request(0, { promptLen: 60 }), request(1, { atMs: 1500 })]),
      prepare: (cluster) => {
        const server = cluster.contexts[0]?.server;
        if (server === undefined) return;
        const respond = server.cache.getBlockIdsRange.bind(server.cache);
        let left = 7;
        server.cache.getBlockIdsRange = (id, group, begin, end) => {
          left -= 1;
          if (left === 0) throw new InternalError('the block was evicted');
          return respond(id, group, begin, end);
        };
      },
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'a burst of cancels leaves a server that works',
      references: [thread(REPOSITORY, 13713)],
      plan: plan(
        series(60, 1, { entrance: 'coordinated' }).map((item) => ({ ...item, promptLen: 8 + (item.number % 50) })),
        series(60, 1).map(({ number }) => ({
          kind: 'cancel' as const,
          request: number,
          by: 'user' as const,
          afterMs: (number * 7) % 40,
        })),
        { slotCount: 24, auxSlots: 3 },
      ),
      expect: {},
    },
    {
      name: 'a timeout while the transport still holds the pages',
      references: [thread(REPOSITORY, 14565), thread(REPOSITORY, 13796)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 4000 })],
        [transfers('hang', { skip: 2, tailMs: 1500 })],
        {
          limits: { transferQueueTimeoutMs: 3000, noProgressTimeoutMs: 600, kvTransferTimeoutMs: 2500 },
        },
      ),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1500 }, 1: DONE },
    },
    {
      name: 'a request that ended for its user ends on both servers',
      references: [thread(REPOSITORY, 16402)],
      plan: plan(
        [request(0, { promptLen: 60, entrance: 'coordinated' })],
        [{ kind: 'cancel', request: 0, by: 'user', afterMs: 15 }],
        { msPerToken: 1 },
      ),
      expect: { 0: { coordinator: 'cancelled', withinMs: 1000 } },
    },
    {
      name: 'a device that fails for one prompt fails that prompt',
      references: [thread(REPOSITORY, 16834)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 400 })],
        [{ kind: 'forward', host: CONTEXT, skip: 2, how: 'device' }],
      ),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'questions about requests that never come are forgotten',
      references: [thread(REPOSITORY, 13112)],
      plan: plan([...series(30, 3, { entrance: 'generation-only', promptLen: 4 }), request(40, { atMs: 200 })], [], {
        auxSlots: 40,
        slotCount: 80,
      }),
      expect: { ...all(series(30, 3), { generation: 'failed', withinMs: 4500 }), 40: DONE },
    },
    {
      name: 'slice results that overtake each other, and come after the report',
      references: [thread(REPOSITORY, 13075)],
      plan: plan([request(0, { promptLen: 60 })], [delay('SLICE_RESULT', 300, 2, 6)]),
      expect: { 0: { ...DONE, withinMs: 200 } },
    },
    {
      name: 'a shutdown in the middle of transfers throws nothing',
      references: [thread(REPOSITORY, 15238)],
      plan: plan(series(12, 3, { promptLen: 60 }), [
        transfers('transfer', { count: 100, durationMs: 20 }),
        { kind: 'shutdown', host: GENERATION, atMs: 40, restartAfterMs: 50 },
      ]),
      expect: {},
    },
    {
      name: 'reuse while the pool has no block to spare',
      references: [thread(REPOSITORY, 12918)],
      plan: plan(series(20, 3, { family: 2, promptLen: 45 }), [], { slotCount: 17 }),
      expect: all(series(20, 3), DONE),
    },
  ],
  byDesign: [
    {
      name: 'ranks diverge in collectives; one rank’s error or response stops the others',
      references: [thread(REPOSITORY, 17095)],
      why: 'A rank of this package runs no collective per request. Several ranks meet in a RankGroup, whose call order is fixed by steps and checked: ranks.ts has the schedules.',
    },
    {
      name: 'sockets used from several threads',
      references: [thread(REPOSITORY, 18194)],
      why: 'One Messenger owns every socket and lives on the JS thread; native threads hand over completions, never frames.',
    },
    {
      name: 'regions of a bounce arena released instead of quarantined; a failure reported while a scatter is queued',
      references: [thread(REPOSITORY, 16116)],
      why: 'This build has no bounce path; with it come its own scenarios.',
    },
    {
      name: 'an interior gap in a block list mis-addresses pages; a send under a lock blocks; a status walk without the lock',
      references: [thread(REPOSITORY, 15727)],
      why: 'Lists of slots travel with their first ordinal (BlockRun) and a run that is short is refused; there are no locks on the JS thread, and Messenger.send never waits.',
    },
    {
      name: 'descriptor counts, allocation types, parameter maps, cold connections',
      references: [
        thread(REPOSITORY, 17518),
        thread(REPOSITORY, 16832),
        thread(REPOSITORY, 17241),
        thread(REPOSITORY, 15780),
        thread(REPOSITORY, 15519),
        thread(REPOSITORY, 9212),
      ],
      why: 'Matters of the data path and of configuration: no order of messages or events leads to them.',
    },
  ],
};
