import { afterEach, describe, expect, it } from 'vitest';
import { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import { DEFAULT_EPOCH_MS, SnowflakeIds } from '../../../src/coordinator/snowflake-ids.js';
import { CompatibilityError, PeerLostError } from '../../../src/errors.js';
import { tinyServeEngine } from '../../../src/serve/engine/tiny-serve-engine.js';
import { type AnswerRequest, readCompletion } from '../../../src/serve/front/answer-request.js';
import { AnswerStream } from '../../../src/serve/front/answer-stream.js';
import type { TextCodec, TokenDecoder } from '../../../src/serve/text/text-codec.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { FakeServer } from '../coordinator/fake-server.js';
import { httpWorld, until } from './http-world.js';

let world: Awaited<ReturnType<typeof httpWorld>> | null = null;
afterEach(async () => {
  await world?.close();
  world = null;
});

const lost = {
  outcome: 'failed',
  error: new PeerLostError('generation-0 was lost', { peer: 'generation-0' }),
} as const;

/** What one try of the newest request gives before its generation worker dies. */
async function dies(from: Awaited<ReturnType<typeof httpWorld>>, text: string, tries: number): Promise<void> {
  const { generation, context, log } = from;
  await until(
    () => generation.submitted.length === tries,
    () => log.join(),
  );
  for (const [index, token] of [...Buffer.from(text)].entries()) generation.last.events.onToken?.(token, index);
  generation.last.end(lost);
  context.last.end({ outcome: 'cancelled' });
}

describe('an answer that is wanted whole, whose generation worker dies', () => {
  it('is tried again under a new id, whatever was generated, and has nothing of the first try', async () => {
    world = await httpWorld({ maxRetries: 1 });
    const { complete, generation, context, log } = world;
    const response = complete({ stop: 'xy', return_token_ids: true });
    // A stop string that has begun, and the first byte of a character.
    await dies(world, 'abx', 1);
    await until(
      () => generation.submitted.length === 2,
      () => log.join(),
    );
    const [first, second] = generation.submitted.map(({ request }) => request);
    expect(second?.params.disaggRequestId).not.toBe(first?.params.disaggRequestId);
    expect(second?.sampling).toEqual(first?.sampling);
    const tokens = [...Buffer.from('yes')];
    for (const [index, token] of tokens.entries()) generation.last.events.onToken?.(token, index);
    context.last.end({ usage: { promptTokens: 2, cachedTokens: 1 } });
    generation.last.end({ outputTokens: tokens });
    expect((await response).status).toBe(200);
    expect(await (await response).json()).toMatchObject({
      choices: [{ text: 'yes', token_ids: tokens, finish_reason: 'length' }],
      usage: { completion_tokens: 3, prompt_tokens_details: { cached_tokens: 1 } },
    });
  });

  it('ends with an error when the second try dies too', async () => {
    world = await httpWorld({ maxRetries: 1 });
    const response = world.complete();
    await dies(world, 'ab', 1);
    await dies(world, 'abc', 2);
    expect((await response).status).toBe(502);
    expect((await response).headers.get('retry-after')).toBe('1');
    expect(world.generation.submitted).toHaveLength(2);
  });
});

function stream(more: object = {}, decoder: Partial<TokenDecoder> = {}) {
  const clock = new FakeClock(0);
  const log: string[] = [];
  const context = new FakeServer('context', 'tcp://127.0.0.1:1', log);
  const generation = new FakeServer('generation', null, log);
  const coordinator = new DisaggCoordinator({
    clock,
    ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e9, nodeId: 0, processId: 0 }),
    context,
    generation,
    scheduleStyle: 'generation_first',
  });
  const engine = tinyServeEngine({ max_model_tokens: 64 });
  const request: AnswerRequest = readCompletion(
    { model: 'kvt-tiny', prompt: 'ab', max_tokens: 8, stream: true, ...more },
    { engine, maxPromptTokens: null },
  );
  const codec: TextCodec = {
    ...engine.codec,
    encode: (text) => engine.codec.encode(text),
    encodeChat: (messages) => engine.codec.encodeChat(messages),
    endTokens: engine.codec.endTokens,
    decoder: () => {
      const own = engine.codec.decoder();
      return { push: (token) => own.push(token), end: () => own.end(), ...decoder };
    },
  };
  const answer = new AnswerStream(coordinator, codec, request, '');
  const say = (text: string): void => {
    for (const [index, token] of [...Buffer.from(text)].entries()) generation.last.events.onToken?.(token, index);
  };
  return { clock, context, generation, coordinator, answer, say, log };
}

describe('a stream whose generation worker dies', () => {
  it('is tried again while nothing was handed over', async () => {
    const { clock, context, generation, answer, say } = stream();
    say('a');
    await answer.begun();
    generation.last.end(lost);
    await clock.turn();
    expect(generation.submitted).toHaveLength(2);
    const next = answer.next();
    say('xyz');
    expect(await next).toMatchObject({ text: 'xyz' });
    generation.last.end({ outputTokens: [...Buffer.from('xyz')] });
    context.last.end({ usage: { promptTokens: 2, cachedTokens: 1 } });
    expect(await answer.next()).toBeNull();
    expect(answer.end).toMatchObject({ completionTokens: 3, cachedTokens: 1, attempts: 2 });
  });

  it('is not, once something was', async () => {
    const { clock, generation, answer, say } = stream();
    say('a');
    expect(await answer.next()).toMatchObject({ text: 'a' });
    generation.last.end(lost);
    await clock.turn();
    expect(generation.submitted).toHaveLength(1);
    await expect(answer.next()).rejects.toBe(lost.error);
  });

  it('is not when its text is whole: that is the answer', async () => {
    const { clock, context, generation, answer, say } = stream({ stop: '.' });
    say('a.');
    generation.last.end(lost);
    context.last.end({ outcome: 'cancelled' });
    await clock.turn();
    expect(generation.submitted).toHaveLength(1);
    expect(await answer.whole()).toMatchObject({ text: 'a' });
    expect(answer.end).toMatchObject({ finishReason: 'stop' });
  });

  it('is not for an error that another try would not mend', async () => {
    const { clock, generation, answer, say } = stream();
    say('a');
    const error = new CompatibilityError('other heads');
    generation.last.end({ outcome: 'failed', error });
    await clock.turn();
    expect(generation.submitted).toHaveLength(1);
    await expect(answer.whole()).rejects.toBe(error);
  });
});

describe('a codec that throws', () => {
  const fails = (): never => {
    throw new TypeError('no such token');
  };

  it('in the middle of an answer: the request fails with that, and both servers are told', async () => {
    const { answer, say, coordinator, log } = stream({}, { push: fails });
    say('a');
    await expect(answer.next()).rejects.toMatchObject({
      code: 'ERR_KVT_INTERNAL',
      message: expect.stringContaining('no such token'),
    });
    expect(log.slice(2).sort()).toEqual(['context cancel', 'generation cancel']);
    expect(coordinator.stats().internalErrors).toBe(1);
  });

  it('at its end: whoever reads the answer is told, and nothing hangs', async () => {
    const { answer, say, context, generation } = stream({}, { end: fails });
    say('a');
    expect(await answer.next()).toMatchObject({ text: 'a' });
    const next = answer.next();
    generation.last.end({ outputTokens: [97] });
    context.last.end({ usage: { promptTokens: 2, cachedTokens: 0 } });
    await expect(next).rejects.toMatchObject({ message: 'the answer cannot be shown as text: no such token' });
    await answer.released;
  });
});
