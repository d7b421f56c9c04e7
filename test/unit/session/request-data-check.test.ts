import { describe, expect, it } from 'vitest';
import { checkRequestData } from '../../../src/session/request-data-check.js';
import type { RequestData } from '../../../src/wire/messages.js';
import { makeRequest, TransferPair } from '../../sim-lite/transfer-pair.js';

describe('checkRequestData', async () => {
  const pair = await TransferPair.create();
  const peer = {
    name: 'generation rank 0',
    endpoint: pair.generation.transceiver.endpoint,
    incarnation: 1n,
    info: { pageTable: pair.generation.table },
    link: null,
  } as unknown as Parameters<typeof checkRequestData>[1];
  const request = makeRequest(1, 'context');
  const good: RequestData = {
    type: 'REQUEST_DATA',
    rid: 1n,
    ticket: 2n,
    timeLeftMs: 1000,
    promptLen: 16,
    cachedTokens: 0,
    auxSlot: 3,
    endpoint: peer.endpoint,
    traceparent: '',
    runs: [{ begin: 0, slots: Int32Array.of(-1, 31, 0, 5) }],
  };

  it('accepts what fits the published table', () => {
    expect(checkRequestData(good, peer, request)).toBeNull();
    expect(checkRequestData(good, peer, null)).toBeNull();
  });

  const bad: readonly [string, Partial<RequestData>, RegExp][] = [
    ['another prompt length', { promptLen: 15 }, /expects 15 prompt tokens, the request has 16/],
    ['a run too many', { runs: [...good.runs, ...good.runs] }, /2 runs for the 1 layer groups/],
    ['a slot past the pool', { runs: [{ begin: 0, slots: Int32Array.of(32) }] }, /slot 32/],
    ['a run past the prompt', { runs: [{ begin: 1, slots: Int32Array.of(1, 2, 3, 4) }] }, /ends at block 5/],
    ['one slot for two blocks', { runs: [{ begin: 0, slots: Int32Array.of(7, 7) }] }, /slot 7 for two blocks/],
    ['an aux slot past the buffer', { auxSlot: 4 }, /aux slot 4, but it published 4/],
  ];
  for (const [what, change, message] of bad)
    it(`refuses ${what}`, () => {
      const error = checkRequestData({ ...good, ...change }, peer, request);
      expect(error?.code).toBe('ERR_KVT_PROTOCOL');
      expect(error?.message).toMatch(message);
    });
});
