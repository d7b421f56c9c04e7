import { decodeFrame } from '../../src/wire/frame-codec.js';
import type { FrameOrigin } from '../../src/wire/messenger.js';
import type { FakeMessenger } from '../sim-lite/fake-messenger.js';
import { makeRequest, TransferPair } from '../sim-lite/transfer-pair.js';

/** A pair after one request, so that each is the other's peer. */
export async function transferred(): Promise<{
  readonly pair: TransferPair;
  /** The context server's messenger: what is delivered here came over the network. */
  readonly door: FakeMessenger;
  /** Of the generation server. */
  readonly incarnation: bigint;
  /** How the context server knows its frames. */
  readonly origin: FrameOrigin;
}> {
  const pair = new TransferPair();
  const doors: FakeMessenger[] = [];
  const bind = pair.network.bind.bind(pair.network);
  pair.network.bind = (endpoint) => {
    const messenger = bind(endpoint);
    doors.push(messenger);
    return messenger;
  };
  pair.context = await pair.start('context');
  pair.generation = await pair.start('generation');
  const rid = 1n << 41n;
  const context = makeRequest(1, 'context', { rid });
  const generation = makeRequest(2, 'generation', { rid, endpoint: pair.context.transceiver.endpoint });
  pair.context.cache.place(1, [0, 1, 2, 3]);
  pair.generation.cache.place(2, [4, 5, 6, 7]);
  pair.generation.transceiver.requestAndReceiveAsync(generation);
  await pair.run(50);
  context.chunkEnd = 16;
  context.outputTokens.push(1);
  pair.context.transceiver.respondAndSendAsync(context, { after: null });
  await pair.run(100);
  const hello = pair.network.log.find(({ from }) => from === pair.generation.transceiver.endpoint);
  if (hello === undefined || pair.generation.settled[0]?.outcome !== 'completed') throw new Error('no transfer');
  const { incarnation } = decodeFrame(hello.bytes);
  const origin = pair.network.originOf(pair.generation.transceiver.endpoint, pair.context.transceiver.endpoint);
  return { pair, door: doors[0] as FakeMessenger, incarnation, origin };
}
