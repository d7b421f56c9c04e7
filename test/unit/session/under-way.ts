import { expect } from 'vitest';
import type { Message } from '../../../src/wire/index.js';
import { decodeFrame, encodeFrame } from '../../../src/wire/index.js';
import { type Rank, type RankRequest, RankWorld } from '../../sim-lite/rank-world.js';

/** One transfer that is under way: the first of two chunks arrived. */
export async function underWay(options: ConstructorParameters<typeof RankWorld>[0] = {}) {
  const world = new RankWorld(options);
  const [context] = (await world.instance('context')) as [Rank];
  const [generation] = (await world.instance('generation')) as [Rank];
  const sent = world.place([context], 'context');
  const received = world.place([generation], 'generation', { endpoint: context.transceiver.endpoint });
  world.ask(received);
  await world.run(50);
  world.chunk(sent, 0, 8);
  await world.run(20);
  return { world, context, generation, sent, received };
}

/** What this rank might say itself: on its own connection. */
export function speak(world: RankWorld, from: Rank, to: Rank, message: Message): void {
  const frame = world.network.log.find((sent) => sent.from === from.transceiver.endpoint);
  const { incarnation } = decodeFrame(frame?.bytes ?? new Uint8Array());
  const bytes = encodeFrame(message, { incarnation });
  world.network.sayAs(from.transceiver.endpoint, to.transceiver.endpoint, bytes);
}

/** A stranger, on a connection of its own, with whatever incarnation in the header. */
export function forge(world: RankWorld, to: Rank, message: Message, incarnation: bigint): void {
  world.network.bind().send(to.transceiver.endpoint, encodeFrame(message, { incarnation }));
}

/** The HELLO that `from` sent. */
export function helloOf(world: RankWorld, from: Rank) {
  const frame = world.network.log.find((f) => f.from === from.transceiver.endpoint && f.message.type === 'HELLO');
  const { message, incarnation } = decodeFrame(frame?.bytes ?? new Uint8Array());
  if (message.type !== 'HELLO') throw new Error('no HELLO was sent');
  return { hello: message, incarnation };
}

export async function completes(world: RankWorld, sent: RankRequest[], received: RankRequest[]): Promise<void> {
  world.chunk(sent, 8, 16);
  await world.run(100);
  expect(received.map(({ rank }) => rank.settled.map(({ outcome }) => outcome))).toEqual([['completed']]);
  expect(world.wrongWords(received[0] as RankRequest)).toBe(0);
  expect(world.leftovers()).toEqual([]);
}

/** The ticket of the request at `to`, and what it was asked with. */
export function questionTo(world: RankWorld, to: Rank) {
  const frame = world.network.log.findLast(
    ({ to: endpoint, message }) => endpoint === to.transceiver.endpoint && message.type === 'REQUEST_DATA',
  );
  if (frame?.message.type !== 'REQUEST_DATA') throw new Error('nothing was asked');
  return frame.message;
}

/** What `from` sent to `to` since `at`, other than its regular PINGs. */
export function sentSince(world: RankWorld, at: number, from: Rank, to: string): Message['type'][] {
  return world.network.log
    .filter((frame) => frame.from === from.transceiver.endpoint && frame.to === to && frame.sentAt >= at)
    .map(({ message }) => message.type as Message['type'])
    .filter((type) => type !== 'PING');
}
