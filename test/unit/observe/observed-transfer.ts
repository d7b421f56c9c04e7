import type { LlmRequest } from '../../../src/executor/request.js';
import type { FakeMessenger } from '../../sim-lite/fake-messenger.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

export const BLOCKS = 4;
export const PROMPT = 16;

/** One request through a pair on fake time: two chunks of two blocks. */
export class ObservedTransfer {
  readonly pair: TransferPair;
  readonly sent: LlmRequest;
  readonly received: LlmRequest;

  constructor(pair: TransferPair, id = 1, options: { readonly rid?: bigint; readonly firstSlot?: number } = {}) {
    const { rid = 1n << 41n, firstSlot = 0 } = options;
    this.pair = pair;
    this.sent = makeRequest(id, 'context', { promptLen: PROMPT, rid });
    this.received = makeRequest(id, 'generation', {
      promptLen: PROMPT,
      rid,
      endpoint: pair.context.transceiver.endpoint,
    });
    const slots = Array.from({ length: BLOCKS }, (_, block) => firstSlot + block);
    pair.context.cache.place(id, slots);
    pair.generation.cache.place(id, slots);
  }

  ask(): void {
    this.pair.generation.transceiver.requestAndReceiveAsync(this.received);
  }

  chunk(start: number, end: number): void {
    this.sent.chunkStart = start;
    this.sent.chunkEnd = end;
    if (end === PROMPT) this.sent.outputTokens.push(7);
    this.pair.context.transceiver.respondAndSendAsync(this.sent, { after: null });
  }

  /** To the end of both sides. */
  async whole(): Promise<void> {
    this.ask();
    await this.pair.run(100);
    this.chunk(0, PROMPT / 2);
    await this.pair.run(50);
    this.chunk(PROMPT / 2, PROMPT);
    await this.pair.run(300);
  }
}

/** A pair, and how anybody's bytes reach its servers: the network itself carries only frames. */
export async function openToAnybody(): Promise<{
  readonly pair: TransferPair;
  readonly deliver: (to: 'context' | 'generation', bytes: Uint8Array) => void;
}> {
  const pair = new TransferPair();
  const messengers: FakeMessenger[] = [];
  const bind = pair.network.bind.bind(pair.network);
  pair.network.bind = (endpoint) => {
    const messenger = bind(endpoint);
    messengers.push(messenger);
    return messenger;
  };
  pair.context = await pair.start('context');
  pair.generation = await pair.start('generation');
  return {
    pair,
    deliver: (to, bytes) =>
      messengers[to === 'context' ? 0 : 1]?.deliver(bytes, { kind: 'accepted', connection: 'a stranger' }),
  };
}
