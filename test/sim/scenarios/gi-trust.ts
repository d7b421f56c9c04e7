import { Random } from '../core/random.js';
import { all, DONE, plan, request, type ScenarioGroup, series, thread } from './scenario.js';

export const TRUST: ScenarioGroup = {
  group: 'G. handshake and compatibility; I. security',
  scenarios: [
    {
      name: 'two sides that do not fit are told so at the handshake, before any page moves',
      references: [
        thread('llm-d/llm-d', 2433),
        thread('vllm-project/vllm', 42895),
        thread('vllm-project/vllm', 45575),
        thread('NVIDIA/TensorRT-LLM', 16505),
      ],
      plan: plan([request(0, { entrance: 'coordinated' })], [], { generationDtype: 'float16' }),
      expect: { 0: { coordinator: 'failed', withinMs: 100, code: 'ERR_KVT_COMPATIBILITY' } },
      counters: { hello_refused: 1 },
    },
    {
      name: 'bytes that are no frames are counted and harm nobody',
      references: [
        'https://github.com/advisories/GHSA-hj4w-hm2g-p6w5',
        'https://github.com/ModelTC/LightLLM/issues/1213',
        thread('sgl-project/sglang', 21435),
        'https://github.com/InternLM/lmdeploy/issues/4804',
      ],
      plan: plan(series(20, 10), [{ kind: 'truncate', probability: 0.1, fromMs: 0, toMs: 150 }]),
      prepare: (cluster) => {
        const random = new Random(77);
        for (let i = 0; i < 300; i++) {
          const bytes = Uint8Array.from({ length: random.below(200) }, () => random.below(256));
          // Half of them begin like ours.
          if (random.chance(0.5))
            bytes.set([0x4b, 0x56, 0x54, 0x31, 1, 0, random.between(0, 20)].slice(0, bytes.length));
          const host = random.pick(cluster.hosts);
          cluster.scheduler.at(random.real(0, 300), null, () => cluster.network.inject(host.infoEndpoint, bytes));
        }
      },
      expect: all(series(20, 10), DONE),
      counters: { 'wire_error:truncated': 1, 'wire_error:bad-magic': 1 },
    },
  ],
  byDesign: [
    {
      name: 'mixed versions during a rolling upgrade that a router cannot see',
      references: [thread('vllm-project/vllm', 52999)],
      why: 'HELLO lists the wire majors a rank speaks and carries its page table; a peer that shares none is refused with the versions of both sides. A later minor may only append to a body, which the codec tests pin.',
    },
    {
      name: 'two sides whose network adapters have different MTUs',
      references: [thread('kvcache-ai/Mooncake', 3868)],
      why: 'Not a decision of the control plane: the transport (UCX under NIXL) agrees on it when it connects, and a post that fails there is the scenario of group A.',
    },
    {
      name: 'a client that selects a test transport',
      references: [thread('sgl-project/sglang', 36855)],
      why: 'A CoordinatorRequest has no field that names an agent, a path, an address or a file; the coordinator fills ctxInfoEndpoint from the server it was configured with, and only that endpoint’s accepted HELLO brings memory descriptions.',
    },
  ],
};
