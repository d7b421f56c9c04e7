import { resolveCacheTransceiverConfig } from '../../../src/config/index.js';
import { createAgent } from '../../../src/index.js';
import { buildPageTable } from '../../../src/mapping/index.js';
import { openTransceiver } from '../../../src/open-transceiver.js';
import type { Settled } from '../../../src/session/cache-transceiver.js';
import type { KvCacheTransceiver } from '../../../src/transceiver.js';
import { decodeFrame } from '../../../src/wire/frame-codec.js';
import type { CurveOptions } from '../../../src/wire/index.js';
import { ZeromqMessenger, type ZeromqMessengerOptions } from '../../../src/wire/zeromq-messenger.js';
import { TableCache } from '../../sim-lite/table-cache.js';
import { makeRequest } from '../../sim-lite/transfer-pair.js';
import { until } from '../../support/deadline.js';

const GROUPS = [{ kind: 'attention', windowSize: null, tokensPerBlock: 4, layers: [0, 1], slotCount: 32 }] as const;

export interface AttackedRank {
  readonly transceiver: KvCacheTransceiver;
  readonly messenger: ZeromqMessenger;
  readonly cache: TableCache;
  readonly warnings: string[];
  readonly settled: Settled[];
  /** HELLO frames that it sent. */
  readonly hellos: Uint8Array[];
}

/** Two ranks over real sockets and real memory. */
export class AttackedPair {
  readonly context: AttackedRank;
  readonly generation: AttackedRank;
  #nextId = 1;

  static async open(
    options: Pick<ZeromqMessengerOptions, 'descriptorLimit'> & { readonly curve?: CurveOptions } = {},
  ): Promise<AttackedPair> {
    return new AttackedPair(await openRank('context', options), await openRank('generation', options));
  }

  private constructor(context: AttackedRank, generation: AttackedRank) {
    this.context = context;
    this.generation = generation;
  }

  get hello(): Uint8Array {
    const [hello] = this.generation.hellos;
    if (hello === undefined) throw new Error('the generation rank has greeted nobody');
    return hello;
  }

  async close(): Promise<void> {
    await Promise.all([this.context.transceiver.close(500), this.generation.transceiver.close(500)]);
  }

  /** A request that was asked for and has sent its first half. */
  async begin(): Promise<{ finish: () => Promise<string>; rid: bigint }> {
    const id = this.#nextId++;
    const rid = (1n << 41n) + BigInt(id);
    const { context, generation } = this;
    const { endpoint } = context.transceiver;
    const sent = makeRequest(id, 'context', { rid, generation: generation.transceiver.endpoint });
    const received = makeRequest(id, 'generation', { rid, endpoint });
    context.cache.place(id, [1, 3, 5, 7]);
    generation.cache.place(id, [2, 4, 6, 8]);
    generation.transceiver.requestAndReceiveAsync(received);
    await until(
      () => context.transceiver.receiverReady(sent),
      () => `request ${id} is not asked for`,
    );
    sent.chunkEnd = 8;
    context.transceiver.respondAndSendAsync(sent, { after: null });
    const finish = async (): Promise<string> => {
      sent.chunkStart = 8;
      sent.chunkEnd = 16;
      sent.outputTokens.push(id);
      context.transceiver.respondAndSendAsync(sent, { after: null });
      const settled = () => {
        for (const rank of [context, generation]) rank.settled.push(...rank.transceiver.takeSettled());
        return generation.settled.find(({ request }) => request === received);
      };
      await until(
        () => settled() !== undefined,
        () => `request ${id} does not end`,
      );
      return `${settled()?.outcome}${settled()?.error?.message ?? ''}`;
    };
    return { finish, rid };
  }

  async transfer(): Promise<string> {
    const { finish } = await this.begin();
    return finish();
  }
}

async function openRank(
  role: 'context' | 'generation',
  options: Pick<ZeromqMessengerOptions, 'descriptorLimit'> & { readonly curve?: CurveOptions },
): Promise<AttackedRank> {
  const warnings: string[] = [];
  const messenger = await ZeromqMessenger.open({ ...options, onWarning: (text) => void warnings.push(text) });
  const hellos: Uint8Array[] = [];
  const send = messenger.send.bind(messenger);
  messenger.send = (endpoint, frame) => {
    const { message } = decodeFrame(frame);
    if (message.type === 'HELLO' && message.probe !== true) hellos.push(frame.slice());
    send(endpoint, frame);
  };
  const agent = await createAgent({ kind: 'host', name: `${role}-${process.pid}` });
  const cache = new TableCache(GROUPS, 4);
  const shape = { kvHeads: 2, headDim: 8, dtype: 'bfloat16', poolLayout: 'per-layer', blockLayout: 'HND' } as const;
  const { transceiver } = await openTransceiver({
    instanceName: role,
    agent,
    messenger,
    cache,
    layout: buildPageTable({ groups: GROUPS, ...shape }),
    config: resolveCacheTransceiverConfig({ backend: 'HOST', enablePipelinedTransfer: true }, { role }),
    auxSlotCount: 8,
    log: { warn: (text) => void warnings.push(text), info: () => undefined },
  });
  return { transceiver, messenger, cache, warnings, settled: [], hellos };
}
