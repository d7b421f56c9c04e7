import { createRequest } from '../../../src/executor/create-request.js';
import type { InstanceShape, Shape } from '../plan.js';
import {
  all,
  CONTEXT,
  DONE,
  delay,
  GENERATION,
  lose,
  plan,
  request,
  type ScenarioGroup,
  series,
  thread,
  transfers,
} from './scenario.js';

function instance(tpSize: number, layersPerStage: readonly number[] = [3], dpSize = 1): InstanceShape {
  return { tpSize, dpSize, cpSize: 1, layersPerStage, blockLayout: 'HND' };
}

function shape(context: InstanceShape, generation: InstanceShape, changes: Partial<Shape> = {}): Partial<Shape> {
  return { context, generation, kvHeads: 2, ...changes };
}

/** Two writers, one receiver. */
const TWO_TO_ONE = shape(instance(2), instance(1));
/** One writer, two receivers. */
const ONE_TO_TWO = shape(instance(1), instance(2));
const TWO_GROUPS = shape(instance(2, [3], 2), instance(2));
const FAILED = { context: 'failed', generation: 'failed', withinMs: 1000 };
const LONG = { promptLen: 60 };

export const RANKS: ScenarioGroup = {
  group: 'several ranks an instance',
  scenarios: [
    {
      name: 'unequal stages, heads and copies: every rank gets its own words',
      references: [thread('llm-d/llm-d', 2433), thread('vllm-project/vllm', 42895)],
      plan: plan(series(6, 40, LONG), [], shape(instance(4, [1, 2]), instance(2, [2, 1]))),
      expect: all(series(6, 40), DONE),
    },
    {
      name: 'a latent cache is the same on every rank, and is written once',
      references: [thread('NVIDIA/TensorRT-LLM', 13112)],
      plan: plan(series(4, 40), [], shape(instance(4), instance(2, [1, 2]), { latent: true, kvHeads: 1 })),
      expect: all(series(4, 40), DONE),
    },
    {
      name: 'one of several writers is killed: both sides fail once, its sibling stops',
      references: [thread('ai-dynamo/dynamo', 9434), thread('vllm-project/vllm', 56104)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 4000 })],
        [{ kind: 'crash', host: CONTEXT, rank: 1, atMs: 16, restartAfterMs: 1500, noticed: true }],
        { ...TWO_TO_ONE, msPerToken: 1 },
      ),
      expect: { 0: { ...FAILED, withinMs: 1500 }, 1: DONE },
    },
    {
      name: 'one of several writers is killed after its report was taken: what its sibling still sends is waited for',
      references: ['simulator, seed 100455: the rules took it for a loss that the receiver had missed'],
      plan: plan(
        [request(0, { style: 'context_first' }), request(1, { atMs: 6000 })],
        [
          transfers('transfer', { rank: 1, durationMs: 300 }),
          { kind: 'stop', host: CONTEXT, rank: 1, atMs: 150, ms: 2200 },
          { kind: 'crash', host: CONTEXT, rank: 0, atMs: 200, restartAfterMs: 4000, noticed: true },
        ],
        TWO_TO_ONE,
      ),
      expect: { 0: { generation: 'completed', withinMs: 3000 }, 1: DONE },
    },
    {
      name: 'one of several writers fails and goes on writing: the pages wait for it alone',
      references: [thread('sgl-project/sglang', 36707), thread('vllm-project/vllm', 56104)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 20, family: 3 }), request(2, { atMs: 1500 })],
        [transfers('fail-undrained', { rank: 1, skip: 1, durationMs: 5, tailMs: 600 })],
        { ...TWO_TO_ONE, slotCount: 18 },
      ),
      expect: { 0: FAILED, 2: DONE },
    },
    {
      name: 'the report of one of several writers is lost: nothing is complete before it comes again',
      references: [thread('sgl-project/sglang', 39846), thread('NVIDIA/TensorRT-LLM', 17665)],
      plan: plan([request(0), request(1, { atMs: 200 })], [lose('WRITER_REPORT', 2)], TWO_TO_ONE),
      expect: { 0: { ...DONE, withinMs: 2500 }, 1: DONE },
    },
    {
      name: 'a receiver rank is killed and its instance is started again: its sibling fails too, then both receive',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33', thread('sgl-project/sglang', 40108)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 5000 }), request(2, { atMs: 8000 })],
        [{ kind: 'crash', host: GENERATION, rank: 1, atMs: 18, restartAfterMs: 2000, noticed: true }],
        { ...ONE_TO_TWO, msPerToken: 1 },
      ),
      expect: { 0: { ...FAILED, withinMs: 1500 }, 2: { ...DONE, withinMs: 500 } },
    },
    {
      name: 'one receiver rank comes back alone: nobody takes it for its predecessor',
      references: [thread('kvcache-ai/Mooncake', 3755), thread('sgl-project/sglang', 36893)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 1500 }), request(2, { atMs: 9000 })],
        [
          {
            kind: 'crash',
            host: GENERATION,
            rank: 1,
            atMs: 18,
            restartAfterMs: 2000,
            noticed: false,
            aloneFirst: true,
          },
        ],
        { ...ONE_TO_TWO, msPerToken: 1 },
      ),
      expect: { 0: { context: 'failed', generation: 'failed' }, 2: { ...DONE, withinMs: 500 } },
    },
    {
      name: 'attention DP, group not known: every group is asked, one writes, the others forget',
      references: [thread('NVIDIA/TensorRT-LLM', 13112)],
      plan: plan(series(8, 30), [], TWO_GROUPS),
      expect: all(series(8, 30), DONE),
    },
    {
      name: 'attention DP, context first: the group that computed the prompt is named in the answer',
      references: [thread('NVIDIA/TensorRT-LLM', 13112)],
      plan: plan(series(6, 30, { style: 'context_first' }), [], TWO_GROUPS),
      expect: all(series(6, 30), DONE),
    },
    {
      name: 'attention DP: pages do not wait for a group that has nothing to do with them',
      references: [thread('NVIDIA/TensorRT-LLM', 13112)],
      plan: plan(series(4, 100, LONG), [], { ...shape(instance(2, [3], 2), instance(1)), slotCount: 18 }),
      expect: all(series(4, 100), { ...DONE, withinMs: 500 }),
    },
    {
      name: 'a context server has not sent a prompt whose last part fails on one rank',
      references: [thread('sgl-project/sglang', 39846)],
      plan: plan(
        [request(0), request(1, { atMs: 1500 })],
        [transfers('fail', { rank: 1, skip: 2, durationMs: 200 })],
        TWO_TO_ONE,
      ),
      expect: { 0: FAILED, 1: DONE },
    },
    {
      name: 'attention DP: a group that cannot be reached is ruled out, and the other one serves',
      references: [thread('NVIDIA/TensorRT-LLM', 16834), thread('NVIDIA/TensorRT-LLM', 13112)],
      plan: plan([request(0, LONG), request(1, { atMs: 3000 })], [], {
        ...shape(instance(2, [3], 2), instance(1)),
        msPerToken: 3,
      }),
      prepare: (cluster) => {
        const [receiver, other] = [cluster.generations[0]?.server, cluster.contexts[0]?.instance.ranks[1]];
        if (receiver === undefined || other === undefined) return;
        cluster.scheduler.at(60, null, () => cluster.network.breakConnection(receiver.endpoint, other.endpoint));
      },
      expect: { 0: DONE, 1: DONE },
    },
    {
      name: 'attention DP: a group that is lost before the other one is greeted does not end what the other one has',
      references: ['simulator, seed 495: the rules took it for a loss that the receiver had missed'],
      plan: plan(
        [request(0, LONG)],
        [
          { kind: 'frame', type: 'HELLO_ACK', skip: 2, count: 4, copies: 1, delayMs: 150 },
          { kind: 'crash', host: CONTEXT, rank: 1, atMs: 60, restartAfterMs: null, noticed: true },
        ],
        { ...shape(instance(2, [3], 2), instance(1)), msPerToken: 40 },
      ),
      expect: { 0: DONE },
    },
    {
      name: 'context parallel on one side: each rank gets every second block',
      references: [thread('llm-d/llm-d', 2433)],
      plan: plan(series(6, 40, LONG), [], shape({ ...instance(1), cpSize: 2 }, instance(2))),
      expect: all(series(6, 40), DONE),
    },
    {
      name: 'attention DP, nobody has the request: every group says so, and the receivers end',
      references: [thread('NVIDIA/TensorRT-LLM', 13112)],
      plan: plan([request(0, { entrance: 'generation-only' }), request(1, { atMs: 6000 })], [], TWO_GROUPS),
      expect: { 0: { generation: 'failed', withinMs: 4500 }, 1: DONE },
    },
    {
      name: 'a sibling that refuses ends the request for all writers and receivers',
      references: [thread('sgl-project/sglang', 36033), thread('sgl-project/sglang', 28651)],
      plan: plan([request(0), request(1, { atMs: 500 })], [], shape(instance(2), instance(2, [1, 2]))),
      prepare: (cluster) => {
        // Rank 1 has ended this request before anybody asks.
        const rank = cluster.contexts[0]?.instance.ranks[1];
        if (rank === undefined) return;
        cluster.scheduler.at(5, rank.process, () => {
          const ended = createRequest({
            id: 77,
            promptTokens: Uint32Array.of(1),
            maxTokens: 1,
            disagg: {
              requestType: 'context_only',
              scheduleStyle: 'generation_first',
              ctxRequestId: null,
              disaggRequestId: 1n << 42n,
              ctxDpRank: null,
              ctxInfoEndpoint: null,
              firstGenTokens: [],
              draftTokens: [],
              traceparent: '',
            },
          });
          rank.transceiver.cancelRequest(ended, 'it ended before');
        });
      },
      expect: { 0: FAILED, 1: DONE },
    },
    {
      name: 'a cancel of one rank is the cancel of all',
      references: [thread('NVIDIA/TensorRT-LLM', 13713)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 500 })],
        [{ kind: 'cancel', request: 0, by: 'generation', afterMs: 20 }],
        { ...shape(instance(2, [1, 2]), instance(2)), msPerToken: 1 },
      ),
      expect: { 0: { context: 'failed', generation: 'cancelled', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'a rank that joins late is waited for',
      references: [thread('ai-dynamo/nixl', 1983)],
      plan: plan(series(3, 20), [], { ...shape(instance(2), instance(2, [1, 2])), joinWithinMs: 1500 }),
      expect: all(series(3, 20), { ...DONE, withinMs: 2500 }),
    },
    {
      name: 'a rank that stands still holds its siblings up, and nothing else',
      references: [thread('NVIDIA/TensorRT-LLM', 17095), thread('sgl-project/sglang', 36893)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 3000 })],
        [{ kind: 'stop', host: CONTEXT, rank: 1, atMs: 20, ms: 1200 }],
        { ...TWO_TO_ONE, msPerToken: 1 },
      ),
      expect: { 0: { ...DONE, withinMs: 2000 }, 1: { ...DONE, withinMs: 500 } },
    },
    {
      name: 'a device that fails on every rank fails the prompt and keeps the ranks together',
      references: [thread('NVIDIA/TensorRT-LLM', 16834)],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 800 })],
        [{ kind: 'forward', host: CONTEXT, skip: 1, how: 'device' }],
        shape(instance(2), instance(2)),
      ),
      expect: { 0: FAILED, 1: DONE },
    },
    {
      name: 'a device that fails on one rank fails the prompt on all, and nothing else',
      references: ['simulator, seeds 1067 and 1068: the ranks parted, and every request of the instance failed'],
      plan: plan(
        [request(0, LONG), request(1, { atMs: 800 })],
        [{ kind: 'forward', host: CONTEXT, rank: 1, skip: 1, how: 'device' }],
        shape(instance(2), instance(2), { windowSize: 8 }),
      ),
      expect: { 0: FAILED, 1: DONE },
    },
    {
      name: 'a decode that fails on one rank ends it on all, also the one that was to be its last',
      references: ['simulator, seeds 1067 and 1068'],
      plan: plan(
        [request(0), request(1, { atMs: 800 })],
        [{ kind: 'forward', host: GENERATION, rank: 1, skip: 0, how: 'enqueue' }],
        shape(instance(2), instance(2)),
      ),
      expect: { 0: { generation: 'failed' }, 1: DONE },
    },
    {
      name: 'a receiver that gives up before it has asked says so, while its sibling has all it wanted',
      references: ['simulator, seed 2402: the context side waited for its queue clock'],
      plan: plan(
        [request(0, { style: 'context_first' }), request(1, { atMs: 4000 })],
        [lose('HELLO', 1), lose('HELLO', 1, 1), { kind: 'cancel', request: 0, by: 'generation', afterMs: 150 }],
        ONE_TO_TWO,
      ),
      expect: { 0: { context: 'failed', generation: 'cancelled', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'a question of one rank that comes late does not start its sibling’s request again',
      references: [thread('NVIDIA/TensorRT-LLM', 13075)],
      plan: plan(
        [request(0), request(1, { atMs: 3000 })],
        [delay('REQUEST_DATA', 900, 2), { kind: 'cancel', request: 0, by: 'generation', afterMs: 40 }],
        ONE_TO_TWO,
      ),
      expect: { 0: { generation: 'cancelled' }, 1: DONE },
    },
  ],
  byDesign: [],
};
