import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SystemClock } from '../../../src/clock.js';
import { BodyBudget } from '../../../src/serve/front/body-budget.js';
import { JsonScan } from '../../../src/serve/front/json-scan.js';
import { ApiError } from '../../../src/serve/front/openai-error.js';
import { BODY_STALL_MS, bodyBytesFor, readJson } from '../../../src/serve/front/read-body.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

const headers = { 'content-type': 'application/json' };

function bodyOf(body: ReadableStream<Uint8Array>): Request {
  return new Request('http://x/', { method: 'POST', headers, body, duplex: 'half' } as RequestInit);
}

describe('a body', () => {
  it('that pauses for too long is given up, with what was held for it', async () => {
    const clock = new FakeClock();
    const budget = new BodyBudget(100);
    const share = budget.open();
    let cancelled = 0;
    const stream = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(new Uint8Array(9).fill(0x20)),
      cancel: () => {
        cancelled += 1;
      },
    });
    const read = readJson(bodyOf(stream), { clock, sizeBytes: 50, maxValues: 10 }, share).catch((error) => error);
    await clock.run(BODY_STALL_MS - 1);
    expect(budget.heldBytes).toBe(9);
    await clock.run(2);
    const error: unknown = await read;
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ status: 408 });
    share.end();
    share.end();
    expect([budget.heldBytes, cancelled]).toEqual([0, 1]);
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
    const request = new Request('http://x/', { method: 'POST', headers, body: text });
    const read = readJson(request, { clock, sizeBytes: 2e6, maxValues: 10 }, new BodyBudget(2e6).open());
    expect(await read).toEqual(JSON.parse(text));
    expect(turns).toBeGreaterThanOrEqual(7);
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
