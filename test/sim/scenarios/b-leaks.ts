import {
  all,
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

export const LEAKS: ScenarioGroup = {
  group: 'B. leaks, and pages freed late or never',
  scenarios: [
    {
      name: 'an aborted receive stops its writer and gives its pages back',
      references: [thread('vllm-project/vllm', 46283)],
      plan: plan(
        [request(0, { promptLen: 60 })],
        [
          transfers('transfer', { count: 30, durationMs: 20 }),
          { kind: 'cancel', request: 0, by: 'generation', afterMs: 30 },
        ],
      ),
      expect: { 0: { context: 'failed', generation: 'cancelled', withinMs: 1000 } },
    },
    {
      name: 'a generation server that refuses the request frees the context server at once',
      references: [thread('vllm-project/vllm', 41269)],
      plan: plan(
        [request(0, { atMs: 100, entrance: 'coordinated' })],
        [{ kind: 'crash', host: GENERATION, atMs: 50, restartAfterMs: null, noticed: true }],
      ),
      expect: { 0: { coordinator: 'failed', withinMs: 50 } },
      check: (cluster) => {
        const leftovers = cluster.contexts[0]?.server.leftovers() ?? null;
        if (leftovers !== null) cluster.journal.violation('scenario', leftovers);
        if (cluster.scheduler.now > 1000)
          cluster.journal.violation('scenario', 'the context server waited for a clock');
      },
    },
    {
      name: 'source pages are free when the push ended, whether or not its report was acknowledged',
      references: [thread('vllm-project/vllm', 58188)],
      plan: plan([request(0)], [lose('REPORT_ACK', 4)]),
      expect: { 0: { ...DONE, withinMs: 100 } },
    },
    {
      name: 'the memory of a dead peer is unmapped without a new handshake',
      references: [thread('vllm-project/vllm', 58063)],
      plan: plan([request(0)], [{ kind: 'crash', host: GENERATION, atMs: 300, restartAfterMs: null, noticed: true }]),
      expect: { 0: DONE },
      check: (cluster) => {
        const mapped = cluster.contexts[0]?.server.agent.peerCount;
        if (mapped !== 0) cluster.journal.violation('scenario', `${mapped} peers are still mapped`);
      },
    },
    {
      name: 'a cancel while the connection breaks',
      references: [thread('ai-dynamo/dynamo', 7489)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 3000 })],
        [
          transfers('transfer', { count: 30, durationMs: 20 }),
          { kind: 'cancel', request: 0, by: 'generation', afterMs: 28 },
          { kind: 'break', from: GENERATION, to: { side: 'context', index: 0 }, atMs: 40 },
        ],
      ),
      expect: { 0: { context: 'failed', generation: 'cancelled', withinMs: 1500 }, 1: DONE },
    },
    {
      name: 'a cancel to a writer that lost its peer is answered all the same',
      references: [thread('ai-dynamo/dynamo', 7489)],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { atMs: 9000 })],
        [
          transfers('transfer', { count: 30, durationMs: 20 }),
          { kind: 'cancel', request: 0, by: 'generation', afterMs: 28 },
          { kind: 'break', from: { side: 'context', index: 0 }, to: GENERATION, atMs: 37 },
        ],
      ),
      expect: { 0: { context: 'failed', generation: 'cancelled', withinMs: 1500 }, 1: DONE },
      check: (cluster) => {
        const counters = cluster.generations[0]?.server.transceiver.stats().counters;
        if ((counters?.['released_unproven'] ?? 0) > 0)
          cluster.journal.violation('scenario', 'the writer could have said that it stopped');
      },
    },
    {
      name: 'a completion that comes after the request expired is counted and dropped',
      references: [thread('vllm-project/vllm', 25562), thread('vllm-project/vllm', 25067), thread('llm-d/llm-d', 187)],
      plan: plan(
        [request(0), request(1, { atMs: 2500 })],
        [delay('WRITER_REPORT', 1500, 3), { kind: 'cancel', request: 0, by: 'generation', afterMs: 40 }],
      ),
      expect: { 1: DONE },
      counters: { 'stale:WRITER_REPORT': 1 },
    },
    {
      name: 'a receive buffer of one prompt serves a hundred in turn',
      references: [thread('LMCache/LMCache', 1030), thread('LMCache/LMCache', 1339), thread('LMCache/LMCache', 1990)],
      plan: plan(series(100, 1), [], { maxTokensInBuffer: 24, auxSlots: 2 }),
      expect: all(series(100, 1), DONE),
    },
    {
      name: 'a prompt larger than the pool is refused at once',
      references: [thread('LMCache/LMCache', 4209)],
      plan: plan([request(0, { promptLen: 60 })], [], { slotCount: 8 }),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 10, code: 'ERR_KVT_REQUEST_TOO_LARGE' } },
    },
  ],
  byDesign: [],
};
