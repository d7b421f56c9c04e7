import {
  all,
  CONTEXT,
  DONE,
  GENERATION,
  plan,
  request,
  type ScenarioGroup,
  series,
  thread,
  transfers,
} from './scenario.js';

/** Content is compared word by word whenever a generation request has its first token; that is not repeated here. */
export const WRONG_DATA: ScenarioGroup = {
  group: 'C. wrong data',
  scenarios: [
    {
      name: 'an aborted receive keeps its pages from the next request while the writer is in flight',
      references: [thread('sgl-project/sglang', 24527), thread('sgl-project/sglang', 35049)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 60, promptLen: 60 })],
        [
          transfers('transfer', { skip: 1, durationMs: 700 }),
          { kind: 'cancel', request: 0, by: 'generation', afterMs: 30 },
        ],
        { slotCount: 18 },
      ),
      expect: { 0: { generation: 'cancelled' }, 1: DONE },
    },
    {
      name: 'a producer that cancels and reuses its pages never serves another prompt with them',
      references: [thread('vllm-project/vllm', 52234)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 60, promptLen: 60 })],
        [
          transfers('transfer', { skip: 1, durationMs: 700 }),
          { kind: 'cancel', request: 0, by: 'context', afterMs: 30 },
        ],
        { slotCount: 18 },
      ),
      expect: { 0: { context: 'cancelled', generation: 'failed', withinMs: 1500 }, 1: DONE },
    },
    {
      name: 'one failed slice does not free pages that its sibling still writes',
      references: [thread('vllm-project/vllm', 56104)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 40, promptLen: 60 })],
        [transfers('fail-undrained', { skip: 2, durationMs: 5, tailMs: 900 })],
        { slotCount: 18 },
      ),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: DONE },
    },
    {
      name: 'the answer to a cancel does not say drained while a failed write goes on',
      references: [thread('sgl-project/sglang', 36707)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 40, promptLen: 60 })],
        [
          transfers('fail-undrained', { skip: 1, durationMs: 15, tailMs: 900 }),
          { kind: 'cancel', request: 0, by: 'generation', afterMs: 14 },
        ],
        { slotCount: 18 },
      ),
      expect: { 1: DONE },
    },
    {
      name: 'a receive with several layer groups waits for all of them',
      references: [thread('sgl-project/sglang', 39846)],
      plan: plan(series(8, 3, { promptLen: 50 }), [transfers('transfer', { count: 40, durationMs: 9 })], {
        windowSize: 9,
      }),
      expect: all(series(8, 3), DONE),
    },
    {
      name: 'two hundred requests over the same pages stay right',
      references: [thread('sgl-project/sglang', 23020)],
      plan: plan(
        series(200, 4).map((item) => ({ ...item, family: item.number, promptLen: 5 + ((item.number * 7) % 50) })),
        [],
        { slotCount: 40 },
      ),
      expect: all(series(200, 4), DONE),
    },
    {
      name: 'a prompt that is retracted half way leaves nothing false in the prefix cache',
      references: [thread('sgl-project/sglang', 38355)],
      plan: plan(
        [
          request(0, { promptLen: 60, family: 2 }),
          ...[1, 2, 3].map((n) => request(n, { atMs: 40 + 60 * n, promptLen: 56, family: 2 })),
        ],
        [{ kind: 'cancel', request: 0, by: 'context', afterMs: 7 }],
        { msPerToken: 0.5 },
      ),
      expect: { 0: { context: 'cancelled' }, 1: DONE, 2: DONE, 3: DONE },
    },
    {
      name: 'block lists that shrink from the front between allocation and sending',
      references: [thread('vllm-project/vllm', 30275), thread('vllm-project/vllm', 30358)],
      plan: plan(
        series(12, 10, { entrance: 'bare' }).map((item) => ({ ...item, promptLen: 30 + item.number, lagMs: -20 })),
        [],
        { windowSize: 6, slotCount: 60 },
      ),
      expect: all(series(12, 10), DONE),
    },
    {
      name: 'a context request that ended stays in memory while its pages are read',
      references: [thread('NVIDIA/TensorRT-LLM', 12540)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 20, promptLen: 60, generation: 1 })],
        [transfers('transfer', { count: 30, durationMs: 60 })],
        { slotCount: 18, generations: 2 },
      ),
      expect: { 0: DONE, 1: DONE },
    },
    {
      name: 'a shutdown waits for the writes that the transport has not given up',
      references: [thread('ai-dynamo/nixl', 2044)],
      plan: plan(
        [request(0, { promptLen: 60 })],
        [
          transfers('fail-undrained', { skip: 1, durationMs: 5, tailMs: 900 }),
          { kind: 'shutdown', host: CONTEXT, atMs: 22, restartAfterMs: null },
        ],
      ),
      expect: { 0: { generation: 'failed', withinMs: 1000 } },
      check: (cluster) => {
        if (cluster.contexts[0]?.server.closed?.drained !== true)
          cluster.journal.violation('scenario', 'the context server closed over running writes');
      },
    },
    {
      name: 'a receiver that shuts down in the middle keeps its memory until its writers stopped',
      references: [thread('ai-dynamo/nixl', 2044)],
      plan: plan(
        [request(0, { promptLen: 60 })],
        [
          transfers('transfer', { count: 20, durationMs: 300 }),
          { kind: 'shutdown', host: GENERATION, atMs: 30, restartAfterMs: null },
        ],
      ),
      expect: {},
      check: (cluster) => {
        if (cluster.generations[0]?.server.closed?.drained !== true)
          cluster.journal.violation('scenario', 'the generation server closed over running writes');
      },
    },
  ],
  byDesign: [
    {
      name: 'handoff parameters are dropped and the generation server computes the prompt again',
      references: ['https://github.com/smg-project/smg/pull/1622'],
      why: 'A generation_only request without ctxInfoEndpoint or id is refused with ERR_KVT_ARGUMENT when it is submitted; an executor has no path from there to computing the prompt itself, and the simulator compares the pages, not only the answer.',
    },
  ],
};
