import { decodeFrame, encodeFrame, type Message } from '../../../src/wire/index.js';
import type { Cluster } from '../cluster/cluster.js';
import { Random } from '../core/random.js';
import { all, CONTEXT, DONE, GENERATION, plan, request, type ScenarioGroup, series, thread } from './scenario.js';

/** As the first process of the run sends it. */
const FIRST_INCARNATION = 0x1001n;
const FIRST_RID = 1n << 42n;

/** The ticket that the newest question for this request named. */
function ticketOf({ book }: Cluster, rid: bigint): bigint {
  const { message } = decodeFrame(book.questions.get(rid) ?? new Uint8Array());
  if (message.type !== 'REQUEST_DATA') throw new Error(`nobody asked for request ${rid}`);
  return message.ticket;
}

/** The first context server says this to the first generation server, on its own connection. */
function say({ contexts, generations, network }: Cluster, message: Message): void {
  const [from, to] = [contexts[0]?.infoEndpoint ?? '', generations[0]?.infoEndpoint ?? ''];
  if (!network.sayAs(from, to, encodeFrame(message, { incarnation: FIRST_INCARNATION })))
    throw new Error(`${from} has no connection to ${to}`);
}

/** It tells of a slice that it never sent, about the ticket that it was given. */
function lie(
  cluster: Cluster,
  atMs: number,
  request: number,
  slice: { readonly beginBlock: number; readonly endBlock: number; readonly bytes: bigint },
): void {
  cluster.scheduler.at(atMs, null, () => {
    const rid = FIRST_RID + BigInt(request);
    const told = {
      rid,
      ticket: ticketOf(cluster, rid),
      sliceSeq: 20 + slice.endBlock,
      isLast: false,
      ok: true,
    } as const;
    say(cluster, { type: 'SLICE_RESULT', ...told, ...slice });
  });
}

/** It says once more that it refused the first question for this request, when it has taken the next one and writes. */
function refuseAgain(cluster: Cluster, request: number, firstAskedMs: number, againMs: number): void {
  const rid = FIRST_RID + BigInt(request);
  cluster.scheduler.at(firstAskedMs, null, () => {
    const ticket = ticketOf(cluster, rid);
    cluster.scheduler.at(againMs - firstAskedMs, null, () => {
      if (ticketOf(cluster, rid) === ticket) throw new Error(`request ${request} was not asked for a second time`);
      const nothing = { outcome: 'REFUSED', slices: 0, bytes: 0n, drained: true } as const;
      const why = { errorCode: 'ERR_KVT_PEER_LOST', message: 'no peer of this process, send HELLO first' };
      say(cluster, { type: 'WRITER_REPORT', rid, ticket, ...nothing, ...why });
    });
  });
}

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
    {
      name: 'a writer that tells of slices that bring nothing holds no pages for ever, and is not believed what did not arrive',
      references: ['review: an empty slice every half second kept a receive open'],
      plan: plan(
        [request(0, { promptLen: 60 }), request(1, { promptLen: 60, atMs: 20 })],
        [{ kind: 'stop', host: CONTEXT, atMs: 60, ms: 12_000 }],
        { msPerToken: 1 },
      ),
      prepare: (cluster) => {
        for (let lies = 0; lies < 5; lies++)
          lie(cluster, 500 + 2000 * lies, 0, { beginBlock: 10 + lies, endBlock: 10 + lies, bytes: 0n });
        for (let block = 0; block < 15; block++)
          lie(cluster, 500, 1, { beginBlock: block, endBlock: block + 1, bytes: 1n });
      },
      expect: { 0: { generation: 'failed' }, 1: { generation: 'failed' } },
      check: ({ lives, journal }) => {
        const ending = lives[0]?.endings.find(({ who }) => who === 'generation');
        // The last true slice, then transferQueueTimeoutMs.
        if (ending === undefined || ending.atMs > 4000)
          journal.violation('I2 bound', `lies kept the receive open until ${ending?.atMs} ms`);
      },
    },
    {
      name: 'what a writer says of the first ticket of a request does not touch the second',
      references: ['review: the refusal of a question may arrive again when the next one was taken'],
      plan: plan(
        [request(0), request(1, { atMs: 400, promptLen: 60 })],
        [{ kind: 'break', from: CONTEXT, to: GENERATION, atMs: 300 }],
        { msPerToken: 1 },
      ),
      prepare: (cluster) => refuseAgain(cluster, 1, 401.2, 440),
      expect: { 0: DONE, 1: DONE },
      counters: { greeted_again: 1, 'stale:WRITER_REPORT': 1 },
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
