import { WireError } from '../../src/errors.js';
import { decodeFrame, encodeFrame } from '../../src/wire/frame-codec.js';
import { HEADER_BYTES } from '../../src/wire/frame-header.js';
import { Random } from '../sim/core/random.js';
import type { FakeMessenger } from '../sim-lite/fake-messenger.js';
import { makeRequest, type Server, SLOT_COUNT, TOKENS_PER_BLOCK, TransferPair } from '../sim-lite/transfer-pair.js';
import { type CorpusFrame, frameCorpus } from './frame-corpus.js';
import { mutateFrame } from './mutate-frame.js';

const FRAMES_PER_ROUND = 500;
const STRANGER = { kind: 'accepted', connection: 'stranger' } as const;

export interface LiveFuzzResult {
  readonly completed: number;
  /** What the frames that cannot be decoded were, counted here, by server. */
  readonly expectedRefusals: readonly Readonly<Record<string, number>>[];
  readonly pair: TransferPair;
  readonly liar: Server;
}

/**
 * Two servers that transfer prompts all the while, and hostile frames at both: from strangers, and from a liar, which is a peer of both
 * whose HELLO was accepted. Every round a healthy request must complete, with the bytes of its pages.
 */
export async function fuzzLive(options: { readonly frames: number; readonly seed: number }): Promise<LiveFuzzResult> {
  const random = new Random(options.seed);
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
  const liar = await pair.start('liar');
  pair.others.push(liar);
  let id = 1;
  // It asks one for pages and is asked by the other, so that both have it for a peer.
  await transfer(pair, random, pair.context, liar, id++);
  await transfer(pair, random, liar, pair.generation, id++);
  const own = pair.network.log.filter(({ from }) => from === liar.transceiver.endpoint);
  const incarnation = decodeFrame((own[0] as { readonly bytes: Uint8Array }).bytes).incarnation;
  const hello = own.find(({ message }) => message.type === 'HELLO')?.bytes as Uint8Array;
  const liarFrames: CorpusFrame[] = own.map(({ bytes, message }) => ({
    type: message.type as CorpusFrame['type'],
    bytes,
  }));
  const corpus = [...frameCorpus(options.seed), ...Array.from({ length: 20 }, () => liarFrames).flat()];

  const expectedRefusals: [Record<string, number>, Record<string, number>] = [{}, {}];
  let completed = 0;
  for (let sent = 0; sent < options.frames; sent++) {
    const bytes = mutateFrame(random, corpus).slice();
    if (bytes.length >= 16) {
      const sender = random.chance(0.6) ? incarnation : BigInt(random.below(2 ** 32)) << 32n;
      new DataView(bytes.buffer).setBigUint64(8, sender, true);
    }
    const target = random.below(2) as 0 | 1;
    const reason = refusalOf(bytes);
    if (reason !== null) expectedRefusals[target][reason] = (expectedRefusals[target][reason] ?? 0) + 1;
    const door = doors[target] as FakeMessenger;
    // On the liar's own connection, or on one of a stranger.
    const isLiar = random.chance(0.6);
    door.deliver(bytes, isLiar ? pair.network.originOf(liar.transceiver.endpoint, door.endpoint) : STRANGER);
    if ((sent + 1) % FRAMES_PER_ROUND !== 0) continue;
    await transfer(pair, random, pair.context, pair.generation, id++);
    completed++;
    // It may have said goodbye.
    for (const door of doors.slice(0, 2)) liar.messenger.send(door.endpoint, hello.slice());
    await pair.run(20);
    pair.network.log.length = 0;
  }
  return { completed, expectedRefusals, pair, liar };
}

/** A frame of a known peer with a body that cannot be read. */
export function badFrameOf(incarnation: bigint): Uint8Array {
  return encodeFrame({ type: 'ACCEPTED', rid: 1n, ticket: 1n }, { incarnation }).slice(0, HEADER_BYTES + 4);
}

function refusalOf(bytes: Uint8Array): string | null {
  try {
    decodeFrame(bytes);
    return null;
  } catch (error) {
    if (error instanceof WireError) return error.reason;
    throw error;
  }
}

/** One request all the way, its pages compared. */
async function transfer(pair: TransferPair, random: Random, from: Server, to: Server, id: number): Promise<void> {
  const blocks = random.between(1, 6);
  const options = { rid: (1n << 41n) + BigInt(id), promptLen: blocks * TOKENS_PER_BLOCK };
  const context = makeRequest(1000 + id, 'context', options);
  const generation = makeRequest(2_000_000 + id, 'generation', { ...options, endpoint: from.transceiver.endpoint });
  const [source, target] = [someSlots(random, blocks), someSlots(random, blocks)];
  from.cache.place(context.id, source);
  to.cache.place(generation.id, target);
  pair.fill(from, source);
  to.transceiver.requestAndReceiveAsync(generation);
  await pair.run(30);
  context.chunkEnd = options.promptLen;
  context.outputTokens.push(id);
  from.transceiver.respondAndSendAsync(context, { after: null });
  await pair.run(60);
  for (const [server, request] of [
    [from, context],
    [to, generation],
  ] as const) {
    const settled = server.settled.find((candidate) => candidate.request === request);
    if (settled?.outcome === 'completed') continue;
    const why = settled?.error?.message ?? 'no outcome yet';
    throw new Error(`request ${id} at ${server.agent.name}: ${settled?.outcome ?? 'open'} (${why})`);
  }
  for (const pool of [0, 1])
    for (const [index, slot] of source.entries()) {
      const arrived = pair.page(to, pool, target[index] as number);
      if (Buffer.compare(arrived, pair.page(from, pool, slot)) !== 0) throw new Error(`request ${id}: wrong bytes`);
    }
  from.settled.length = 0;
  to.settled.length = 0;
}

function someSlots(random: Random, count: number): number[] {
  const slots = Array.from({ length: SLOT_COUNT }, (_, slot) => slot);
  return Array.from({ length: count }, () => slots.splice(random.below(slots.length), 1)[0] as number);
}
