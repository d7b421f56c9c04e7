import { TransportError } from '../../../src/errors.js';
import {
  all,
  CONTEXT,
  DONE,
  GENERATION,
  lose,
  plan,
  request,
  type ScenarioGroup,
  series,
  thread,
  transfers,
} from './scenario.js';

const KNOWN: { context: string; generation: string; withinMs: number } = {
  context: 'failed',
  generation: 'failed',
  withinMs: 1000,
};

export const HANGS: ScenarioGroup = {
  group: 'A. hang: one side never learns',
  scenarios: [
    {
      name: 'a write that fails to post is known on both sides at once',
      references: [thread('vllm-project/vllm', 50754)],
      plan: plan([request(0), request(1, { atMs: 1500 })], [transfers('refuse', { skip: 1 })]),
      expect: { 0: KNOWN, 1: DONE },
    },
    {
      name: 'a write that fails half way is known on both sides at once',
      references: [thread('sgl-project/sglang', 36033)],
      plan: plan([request(0), request(1, { atMs: 1500 })], [transfers('fail', { skip: 1 })]),
      expect: { 0: KNOWN, 1: DONE },
    },
    {
      name: 'the completion notice is lost three times',
      references: [thread('NVIDIA/TensorRT-LLM', 17665)],
      // Questions how it goes are lost as well, so that the notice itself must be repeated.
      plan: plan([request(0)], [lose('WRITER_REPORT', 3), lose('STATUS', 100)]),
      expect: { 0: { ...DONE, withinMs: 2500 } },
    },
    {
      name: 'a question that is repeated after its answer was lost gets the same answer',
      references: [thread('NVIDIA/TensorRT-LLM', 17665)],
      plan: plan([request(0)], [lose('ACCEPTED', 2), lose('SLICE_RESULT', 10), lose('WRITER_REPORT', 1)]),
      expect: { 0: { ...DONE, withinMs: 500 } },
    },
    {
      name: 'a late acknowledgement of the undrained report does not stop the drained one',
      references: [thread('NVIDIA/TensorRT-LLM', 13796)],
      plan: plan(
        // The second keeps the faults going after the first has ended.
        [request(0, { promptLen: 60 }), request(1, { atMs: 900 })],
        [
          transfers('fail-undrained', { skip: 1, durationMs: 5, tailMs: 300 }),
          { kind: 'frame', type: 'REPORT_ACK', skip: 0, count: 1, copies: 1, delayMs: 340 },
          lose('WRITER_REPORT', 1, 2),
        ],
      ),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 } },
      check: (cluster) => {
        const counters = cluster.generations[0]?.server.transceiver.stats().counters;
        if ((counters?.['released_unproven'] ?? 0) > 0)
          cluster.journal.violation('scenario', 'the drained report was lost and not repeated');
      },
    },
    {
      name: 'two requests whose ids agree in the low 12 bits are two requests',
      references: [thread('NVIDIA/TensorRT-LLM', 17665)],
      plan: plan(
        [request(5), request(5 + 4096, { family: 3, promptLen: 31 })],
        [lose('WRITER_REPORT', 1), transfers('transfer', { count: 4, durationMs: 40 })],
      ),
      expect: { 5: DONE, 4101: DONE },
    },
    {
      name: 'an agent that throws at submit fails the request, not the server',
      references: [thread('vllm-project/vllm', 55181)],
      plan: plan([request(0), request(1, { atMs: 1500 })]),
      prepare: (cluster) => {
        const agent = cluster.contexts[0]?.server.agent;
        if (agent === undefined) return;
        const submit = agent.submit.bind(agent);
        let left = 1;
        agent.submit = (submission) => {
          if (left-- > 0) throw new TransportError('make_xfer failed', { drained: true });
          submit(submission);
        };
      },
      expect: { 0: KNOWN, 1: DONE },
    },
    {
      name: 'a receive that nobody answers ends by its clock while others go on',
      references: [thread('NVIDIA/TensorRT-LLM', 12471), thread('NVIDIA/TensorRT-LLM', 14414)],
      plan: plan([
        request(0, { entrance: 'generation-only' }),
        ...series(6, 300).map((item) => ({ ...item, number: item.number + 1 })),
      ]),
      expect: {
        0: { generation: 'failed', withinMs: 3500, code: 'ERR_KVT_TRANSFER_TIMEOUT' },
        ...all(
          series(6, 300).map((item) => ({ ...item, number: item.number + 1 })),
          { ...DONE, withinMs: 500 },
        ),
      },
    },
    {
      name: 'abandoned prompts give their blocks back although no new work comes',
      references: [thread('NVIDIA/TensorRT-LLM', 12313)],
      plan: plan(series(8, 5, { entrance: 'context-only', style: 'context_first', promptLen: 40 }), [], {
        slotCount: 20,
      }),
      // Two fit at a time: each pair waits for the clock of the pair before it.
      expect: all(series(8, 5), { context: 'failed', withinMs: 4 * 3300, code: 'ERR_KVT_TRANSFER_TIMEOUT' }),
    },
    {
      name: 'a transfer that never ends has an outcome on both sides, and its pages come back with a warning',
      references: [thread('ai-dynamo/nixl', 2047)],
      plan: plan([request(0), request(1, { atMs: 9000 })], [transfers('never', { skip: 1 })]),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 7000 }, 1: DONE },
      counters: { released_unproven: 1 },
    },
    {
      name: 'a peer that is gone without a word does not hold up the others',
      references: [thread('sgl-project/sglang', 31144)],
      plan: plan(
        [
          request(0, { promptLen: 60 }),
          ...series(6, 200, { generation: 1 }).map((item) => ({ ...item, number: item.number + 1 })),
        ],
        [{ kind: 'crash', host: GENERATION, atMs: 15, restartAfterMs: null, noticed: false }],
        { generations: 2 },
      ),
      expect: all(
        series(6, 200).map((item) => ({ ...item, number: item.number + 1 })),
        { ...DONE, withinMs: 500 },
      ),
    },
    {
      name: 'a completion that comes much later than its data',
      references: ['https://github.com/ROCm/mori/issues/655'],
      plan: plan([request(0)], [transfers('hang', { skip: 2, tailMs: 1500 })]),
      expect: { 0: { ...DONE, withinMs: 2500 } },
    },
    {
      name: 'requests that wait for decode blocks after others took them all end',
      references: [thread('sgl-project/sglang', 6857)],
      plan: plan(series(12, 2, { promptLen: 44, maxTokens: 3 }), [], { slotCount: 18 }),
      expect: all(series(12, 2), DONE),
    },
    {
      name: 'a server that was stopped past a deadline reads what had arrived before it judges',
      references: [thread('sgl-project/sglang', 32267)],
      plan: plan(
        [request(0, { promptLen: 60 })],
        [{ kind: 'stop', host: GENERATION, atMs: 14, ms: 2900 }, transfers('transfer', { count: 20, durationMs: 1 })],
        { limits: { transferQueueTimeoutMs: 2000, noProgressTimeoutMs: 2500, kvTransferTimeoutMs: 6000 } },
      ),
      expect: { 0: DONE },
    },
    {
      name: 'a context server that stops between its chunks goes on where it was',
      references: [thread('ai-dynamo/nixl', 2047)],
      plan: plan([request(0, { promptLen: 60 })], [{ kind: 'stop', host: CONTEXT, atMs: 14, ms: 1200 }]),
      expect: { 0: DONE },
    },
  ],
  byDesign: [
    {
      name: 'tensor-parallel ranks that enter different collectives; a ring whose empty head is missed',
      references: [thread('sgl-project/sglang', 36893), thread('sgl-project/sglang', 36928)],
      why: 'A rank decides from reports that carry a ticket, not from a collective or a shared ring; several ranks exchange lists through RankGroup, whose call order is checked there.',
    },
  ],
};
