import { PassThrough, Readable } from 'node:stream';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Clock, SystemClock } from '../../../src/clock.js';
import { BodyBudget } from '../../../src/serve/front/body-budget.js';
import { BodyBytes, FREE_PIECES, PIECE_BYTES } from '../../../src/serve/front/body-bytes.js';
import { BODY_STALL_MS } from '../../../src/serve/front/body-flow.js';
import { JsonScan } from '../../../src/serve/front/json-scan.js';
import { ApiError } from '../../../src/serve/front/openai-error.js';
import { bodyBytesFor, readJson } from '../../../src/serve/front/read-body.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

const headers = new Headers({ 'content-type': 'application/json' });

function limitsOf(clock: Clock, sizeBytes: number) {
  return { clock, sizeBytes, maxValues: 10 };
}

describe('a body', () => {
  it('that pauses for too long is given up, with what was held for it', async () => {
    const clock = new FakeClock();
    const budget = new BodyBudget(100);
    const share = budget.open();
    const stream = new PassThrough();
    stream.write(Buffer.alloc(9, 0x20));
    const read = readJson({ headers, stream }, limitsOf(clock, 50), share).catch((error) => error);
    await clock.run(BODY_STALL_MS - 1);
    expect(budget.heldBytes).toBe(9);
    stream.write(Buffer.alloc(1, 0x20));
    await clock.run(BODY_STALL_MS - 1);
    expect(budget.heldBytes).toBe(18);
    await clock.run(2);
    const error: unknown = await read;
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ status: 408 });
    share.end();
    share.end();
    expect([budget.heldBytes, stream.readableFlowing, stream.listenerCount('data')]).toEqual([0, true, 0]);
  });

  it.each([
    ['ends too early', (stream: PassThrough) => stream.destroy()],
    ['breaks', (stream: PassThrough) => stream.destroy(new Error('ECONNRESET'))],
  ])('whose connection %s has no client', async (_, end) => {
    const stream = new PassThrough();
    const read = readJson({ headers, stream }, limitsOf(new FakeClock(), 50), new BodyBudget(50).open());
    stream.write('{');
    end(stream);
    await expect(read).rejects.toMatchObject({ status: 499 });
    const late = readJson({ headers, stream }, limitsOf(new FakeClock(), 50), new BodyBudget(50).open());
    await expect(late).rejects.toMatchObject({ status: 499 });
  });

  it('is looked at in turns of the event loop', async () => {
    const clock = new SystemClock();
    let turns = 0;
    const nextTurn = clock.nextTurn.bind(clock);
    clock.nextTurn = () => {
      turns += 1;
      return nextTurn();
    };
    const text = JSON.stringify({ prompt: 'x'.repeat(1_000_000) });
    const pieces = Array.from({ length: 16 }, (_, at) => Buffer.from(text.slice(at * 65_536, (at + 1) * 65_536)));
    const stream = Readable.from(pieces, { objectMode: false });
    expect(await readJson({ headers, stream }, limitsOf(clock, 2e6), new BodyBudget(2e6).open())).toEqual(
      JSON.parse(text),
    );
    expect(turns).toBeGreaterThanOrEqual(7);
  });

  it('is never paused, so that its pieces gather nowhere but in its buffer', async () => {
    const stream = new PassThrough({ highWaterMark: 1e6 });
    const budget = new BodyBudget(1e6);
    const read = readJson({ headers, stream }, limitsOf(new FakeClock(), 400_000), budget.open());
    stream.write(Buffer.alloc(200_000, 0x20));
    for (let pieces = 0; pieces < 9000; pieces++) stream.write(Buffer.alloc(1, 0x20));
    await new Promise((resolve) => setImmediate(resolve));
    expect([stream.isPaused(), stream.readableLength]).toEqual([false, 0]);
    for (let pieces = 0; pieces < 2000; pieces++) stream.write(Buffer.alloc(1, 0x20));
    await expect(read).rejects.toMatchObject({ status: 400, body: { error: { code: 'body_fragmented' } } });
  });

  it.each([null, 3000])('is held once, however many pieces it comes in, announced: %s', (announced) => {
    const budget = new BodyBudget(1e6);
    const body = new BodyBytes(announced ?? 1e5, budget.open());
    const sent = Buffer.from(Array.from({ length: 3000 }, (_, at) => at % 251));
    for (const byte of sent) body.push(Uint8Array.of(byte));
    expect(Buffer.from(body.bytes)).toEqual(sent);
    expect(budget.heldBytes).toBe(announced ?? 4096);
  });

  it.each([1, 7, 16])('of pieces of %i bytes is refused before it is long', (size) => {
    const body = new BodyBytes(1e6, new BodyBudget(2e6).open());
    const piece = new Uint8Array(size);
    const most = Math.floor(FREE_PIECES / (1 - size / PIECE_BYTES));
    for (let pieces = 0; pieces < most; pieces++) body.push(piece);
    const refusal = { status: 400, body: { error: expect.objectContaining({ code: 'body_fragmented' }) } };
    expect(() => body.push(piece)).toThrow(expect.objectContaining(refusal));
  });

  it('has room for what a model takes', () => {
    expect(bodyBytesFor(2048)).toBe(128 * 1024);
    expect(bodyBytesFor(131_072)).toBe(4 * 1024 * 1024 + 64 * 1024);
  });
});

describe('the scan', () => {
  const tries = (text: string, maxValues: number, piece: number): boolean => {
    const bytes = Buffer.from(text);
    const scan = new JsonScan(maxValues);
    try {
      for (let at = 0; at < bytes.length; at += piece) scan.push(bytes.subarray(at, at + piece));
      return true;
    } catch (error) {
      expect(error).toMatchObject({ status: 400 });
      return false;
    }
  };
  /** Lists, maps and what stands in them beside others. */
  const entries = (value: unknown): number =>
    typeof value !== 'object' || value === null
      ? 0
      : 1 +
        Math.max(0, Object.keys(value).length - 1) +
        Object.values(value).reduce((sum: number, one) => sum + entries(one), 0);

  it('counts what JSON.parse would build, however it is cut and whatever the texts are', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 6 }), fc.integer({ min: 1, max: 9 }), (value, piece) => {
        const text = JSON.stringify(value);
        const most = 1 + entries(JSON.parse(text));
        expect(tries(text, most, piece)).toBe(true);
        expect(tries(text, most - 1, piece)).toBe(most === 1);
      }),
      { numRuns: 200 },
    );
  });
});
