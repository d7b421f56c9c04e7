import { all, DONE, plan, request, type ScenarioGroup, series, thread, transfers } from './scenario.js';

export const TIMEOUTS: ScenarioGroup = {
  group: 'E. timeouts that measure the wrong thing; head of line',
  scenarios: [
    {
      name: 'waiting in the receiver’s queue is not charged to the transfer',
      references: [
        'https://github.com/lightseekorg/tokenspeed/issues/1427',
        'https://github.com/smg-project/smg/issues/2463',
        thread('NVIDIA/TensorRT-LLM', 13824),
      ],
      plan: plan(series(10, 1), [transfers('transfer', { count: 1000, durationMs: 120 })], {
        maxTokensInBuffer: 24,
        limits: { transferQueueTimeoutMs: 20_000, noProgressTimeoutMs: 900, kvTransferTimeoutMs: 900 },
      }),
      expect: all(series(10, 1), DONE),
    },
    {
      name: 'a cancelled prefill is known to the generation server at once',
      references: [thread('sgl-project/sglang', 28651)],
      plan: plan([request(0, { promptLen: 60 })], [{ kind: 'cancel', request: 0, by: 'context', afterMs: 10 }], {
        msPerToken: 1,
      }),
      expect: { 0: { context: 'cancelled', generation: 'failed', withinMs: 1000 } },
    },
    {
      name: 'one generation server without memory does not hold up prompts of another',
      references: [thread('sgl-project/sglang', 6351), thread('NVIDIA/TensorRT-LLM', 12640)],
      plan: plan(
        [
          ...series(10, 1, { promptLen: 60 }),
          ...series(5, 20, { generation: 1 }).map((item) => ({
            ...item,
            number: item.number + 10,
            atMs: item.atMs + 100,
          })),
        ],
        [transfers('transfer', { count: 1000, durationMs: 30 })],
        {
          generations: 2,
          maxTokensInBuffer: 60,
          slotCount: 60,
          limits: { transferQueueTimeoutMs: 20_000, noProgressTimeoutMs: 4000, kvTransferTimeoutMs: 6000 },
        },
      ),
      expect: {
        ...all(series(10, 1), DONE),
        ...all(
          series(5, 20).map((item) => ({ ...item, number: item.number + 10 })),
          { ...DONE, withinMs: 1500 },
        ),
      },
    },
    {
      name: 'the transfer clock starts at the first chunk, and ends a transfer that is stuck while the prompt is still computed',
      references: [thread('NVIDIA/TensorRT-LLM', 15727)],
      plan: plan([request(0, { promptLen: 60 })], [transfers('never', { count: 1 })], {
        msPerToken: 200,
        limits: { transferQueueTimeoutMs: 3000, noProgressTimeoutMs: 2000, kvTransferTimeoutMs: 2500 },
      }),
      // The whole prompt takes twelve seconds.
      expect: { 0: { context: 'failed', generation: 'failed', withinMs: 9000 } },
    },
    {
      name: 'a long prefill does not run the transfer clock out',
      references: [thread('NVIDIA/TensorRT-LLM', 13868)],
      plan: plan([request(0, { promptLen: 60 })], [], {
        msPerToken: 120,
        limits: { transferQueueTimeoutMs: 6000, noProgressTimeoutMs: 2500, kvTransferTimeoutMs: 1500 },
      }),
      expect: { 0: DONE },
    },
    {
      name: 'the two hundredth request takes no longer than the first',
      references: [thread('sgl-project/sglang', 5450)],
      plan: plan(series(200, 20)),
      expect: all(series(200, 20), { ...DONE, withinMs: 60 }),
    },
  ],
  byDesign: [],
};
