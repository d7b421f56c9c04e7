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

export const RESTARTS: ScenarioGroup = {
  group: 'F. process death, restart, reconnect',
  scenarios: [
    {
      name: 'a context server replaced before it is asked: who gave it the request ends the receive at once, without that the queue clock does',
      references: [
        'simulator: nobody on the control plane can tell that a generation first request went down with its server',
      ],
      plan: plan(
        [request(0, { entrance: 'coordinated' }), request(1)],
        [{ kind: 'crash', host: CONTEXT, atMs: 10.8, noticed: true, restartAfterMs: 100 }],
      ),
      expect: {
        0: { coordinator: 'failed', withinMs: 500 },
        1: { context: 'failed', generation: 'failed', code: 'ERR_KVT_TRANSFER_TIMEOUT', withinMs: 4000 },
      },
      check: ({ lives, journal }) => {
        const ending = lives[1]?.endings.find(({ who }) => who === 'generation');
        if ((ending?.atMs ?? 0) < 2000)
          journal.violation('I2 bound', `the successor was not asked: ${ending?.message}`);
      },
    },
    {
      name: 'a context server that restarts unnoticed serves again, without a restart of the other side',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33', thread('sgl-project/sglang', 40108)],
      plan: plan(
        [
          request(0),
          request(1, { atMs: 3000, entrance: 'coordinated' }),
          request(2, { atMs: 6000, entrance: 'coordinated' }),
        ],
        [{ kind: 'crash', host: CONTEXT, atMs: 1000, restartAfterMs: 500, noticed: false }],
      ),
      expect: {
        0: DONE,
        1: { coordinator: 'completed', withinMs: 200 },
        2: { coordinator: 'completed', withinMs: 200 },
      },
    },
    {
      name: 'a generation server that restarts unnoticed is served again',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33'],
      plan: plan(
        [request(0), request(1, { atMs: 3000 })],
        [{ kind: 'crash', host: GENERATION, atMs: 1000, restartAfterMs: 500, noticed: false }],
      ),
      expect: { 0: DONE, 1: { ...DONE, withinMs: 200 } },
    },
    {
      name: 'a generation server that restarts unnoticed while nothing is written to it is missed at the next ping',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33'],
      // The first chunk is computed longer than that, and less long than a silent peer is waited for.
      plan: plan([request(0)], [{ kind: 'crash', host: GENERATION, atMs: 300, restartAfterMs: 200, noticed: false }], {
        msPerToken: 200,
        limits: { transferQueueTimeoutMs: 30_000, noProgressTimeoutMs: 30_000, kvTransferTimeoutMs: 6000 },
      }),
      expect: { 0: { context: 'failed', withinMs: 3000 } },
      check: ({ lives, journal }) => {
        const ending = lives[0]?.endings.find(({ who }) => who === 'context');
        if (ending?.code !== 'ERR_KVT_PEER_LOST')
          journal.violation('I2 late', `the context server learnt it by ${ending?.code}: ${ending?.message}`);
      },
    },
    {
      name: 'a context server that dies without a word is missed after three seconds, whatever the clocks of its requests',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33'],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { entrance: 'generation-only' })],
        [{ kind: 'crash', host: CONTEXT, atMs: 18, restartAfterMs: null, noticed: false }],
        { limits: { transferQueueTimeoutMs: 30_000, noProgressTimeoutMs: 30_000, kvTransferTimeoutMs: 6000 } },
      ),
      expect: {
        0: { generation: 'failed', withinMs: 4500, code: 'ERR_KVT_PEER_LOST' },
        1: { generation: 'failed', withinMs: 4500 },
      },
    },
    {
      name: 'a connection that breaks on one side only is greeted again, and the request completes',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33', thread('sgl-project/sglang', 40108)],
      plan: plan(
        [request(0), request(1, { atMs: 600 })],
        [{ kind: 'break', from: CONTEXT, to: GENERATION, atMs: 300 }],
      ),
      expect: { 0: DONE, 1: { ...DONE, withinMs: 200 } },
      counters: { greeted_again: 1 },
    },
    {
      name: 'a refusal that arrives twice does not end the next attempt',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33'],
      plan: plan(
        [request(0), request(1, { atMs: 600, promptLen: 60 })],
        [
          { kind: 'break', from: CONTEXT, to: GENERATION, atMs: 300 },
          { kind: 'duplicate', probability: 1, fromMs: 500, toMs: 2000 },
        ],
      ),
      expect: { 0: DONE, 1: DONE },
    },
    {
      name: 'a first failure does not disown the peer for good',
      references: [thread('ai-dynamo/nixl', 1983)],
      plan: plan([request(0), request(1, { atMs: 1200 })], [transfers('refuse')]),
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 1000 }, 1: { ...DONE, withinMs: 200 } },
    },
    {
      name: 'a context server that dies in the middle of a write takes no other request with it',
      references: [thread('ai-dynamo/dynamo', 9434)],
      plan: plan(
        [
          request(0, { promptLen: 60 }),
          ...series(8, 100, { context: 1 }).map((item) => ({ ...item, number: item.number + 1 })),
        ],
        [
          transfers('transfer', { count: 30, durationMs: 50 }),
          { kind: 'crash', host: CONTEXT, atMs: 40, restartAfterMs: null, noticed: true },
        ],
        { contexts: 2 },
      ),
      expect: {
        0: { generation: 'failed', withinMs: 1000, code: 'ERR_KVT_PEER_LOST' },
        ...all(
          series(8, 100).map((item) => ({ ...item, number: item.number + 1 })),
          DONE,
        ),
      },
    },
    {
      name: 'a handshake answer of the process before reaches the one after',
      references: [
        thread('kvcache-ai/Mooncake', 3755),
        thread('kvcache-ai/Mooncake', 3584),
        thread('kvcache-ai/Mooncake', 3299),
      ],
      plan: plan(
        [
          request(0),
          request(1, { atMs: 1600, entrance: 'coordinated' }),
          request(2, { atMs: 5000, entrance: 'coordinated' }),
        ],
        [
          delay('HELLO_ACK', 1200, 2, 2),
          { kind: 'crash', host: CONTEXT, atMs: 400, restartAfterMs: 300, noticed: true },
        ],
      ),
      expect: { 2: { coordinator: 'completed', withinMs: 200 } },
    },
    {
      name: 'a writer that was stopped past the peer timeout is told the cancel of what it had not read',
      references: ['https://github.com/wtdcode/vllm-backport/issues/33'],
      plan: plan(
        [
          request(0, { atMs: 5 }),
          request(1, { atMs: 450, promptLen: 29, entrance: 'generation-only' }),
          request(2, { atMs: 700, style: 'context_first', entrance: 'context-only', promptLen: 60 }),
          request(3, { atMs: 3600, promptLen: 12 }),
        ],
        [{ kind: 'stop', host: CONTEXT, atMs: 125, ms: 3900 }],
        {
          slotCount: 20,
          limits: { transferQueueTimeoutMs: 4000, noProgressTimeoutMs: 2500, kvTransferTimeoutMs: 6000 },
        },
      ),
      expect: { 1: { generation: 'failed' } },
      check: (cluster) => {
        const counters = cluster.generations[0]?.server.transceiver.stats().counters;
        if ((counters?.['released_unproven'] ?? 0) > 0)
          cluster.journal.violation('scenario', 'pages were released without proof although the writer came back');
      },
    },
  ],
  byDesign: [],
};
