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
    info: { pageTable: pair.generation.table, cpSize: 1, cpRank: 0 },
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
    runs: [{ begin: 0, slots: Int32Array.of(9, 31, 0, 5) }],
  };

  it('accepts what fits the published table', () => {
    expect(checkRequestData(good, peer, request)).toBeNull();
    expect(checkRequestData(good, peer, null)).toBeNull();
  });

  const bad: readonly [string, Partial<RequestData>, RegExp][] = [
    ['another prompt length', { promptLen: 15 }, /expects 15 prompt tokens, the request has 16/],
    ['more cached tokens than prompt', { cachedTokens: 17 }, /17 cached tokens of a prompt of 16/],
    ['cached tokens of 2^31', { cachedTokens: 2 ** 31 }, /2147483648 cached tokens/],
    ['a run that is empty', { runs: [{ begin: 0, slots: new Int32Array(0) }] }, /has 0 blocks, .* needs 4/],
    ['a run that is empty and out of range', { runs: [{ begin: 5, slots: new Int32Array(0) }] }, /begins at block 5/],
    ['a run that lacks the last block', { runs: [{ begin: 0, slots: Int32Array.of(9, 31, 0) }] }, /has 3 blocks/],
    ['a run that lacks the first block', { runs: [{ begin: 1, slots: Int32Array.of(31, 0, 5) }] }, /has 3 blocks/],
    ['a run without its cached blocks', { cachedTokens: 8 }, /has 4 blocks, .* needs 2/],
    [
      'a run that names what is cached and not what is missing',
      { cachedTokens: 8, runs: [{ begin: 0, slots: Int32Array.of(9, 31) }] },
      /begins at block 0, .* from 2 on/,
    ],
    [
      'a hole where a block is needed',
      { runs: [{ begin: 0, slots: Int32Array.of(9, -1, 0, 5) }] },
      /no slot for block 1/,
    ],
    ['a run too many', { runs: [...good.runs, ...good.runs] }, /2 runs for the 1 layer groups/],
    ['a slot past the pool', { runs: [{ begin: 0, slots: Int32Array.of(32) }] }, /slot 32/],
    ['a run past the prompt', { runs: [{ begin: 1, slots: Int32Array.of(1, 2, 3, 4) }] }, /ends at block 5/],
    ['one slot for two blocks', { runs: [{ begin: 0, slots: Int32Array.of(7, 7) }] }, /slot 7 for two blocks/],
    ['an aux slot past the buffer', { auxSlot: 4 }, /aux slot 4, but it published 4/],
  ];
  it('accepts a cached prefix that ends inside a block, and one that is the whole prompt', () => {
    const runs = [{ begin: 1, slots: Int32Array.of(31, 0, 5) }];
    expect(checkRequestData({ ...good, cachedTokens: 7, runs }, peer, request)).toBeNull();
    const none = [{ begin: 4, slots: new Int32Array(0) }];
    expect(checkRequestData({ ...good, cachedTokens: 16, runs: none }, peer, request)).toBeNull();
  });

  it('refuses what has no prompt, whether its request is here or not', () => {
    const nothing = { ...good, promptLen: 0, runs: [{ begin: 0, slots: new Int32Array(0) }] };
    expect(checkRequestData(nothing, peer, null)?.message).toMatch(/at least one token/);
    expect(checkRequestData(nothing, peer, request)?.message).toMatch(/expects 0 prompt tokens/);
  });

  it('of windows, sinks and state: what stays, with a hole between sinks and window', () => {
    const [attention] = pair.generation.table.layerGroups;
    if (attention === undefined) throw new Error('no layer group');
    const layerGroups = [
      { ...attention, windowSize: 16, sinkTokens: 6 },
      { ...attention, kind: 'state', tokensPerBlock: 4 } as const,
    ];
    const windowed = { ...peer, info: { ...peer.info, pageTable: { ...pair.generation.table, layerGroups } } };
    const ask = (...slots: number[]) => ({
      ...good,
      promptLen: 64,
      runs: [
        { begin: 0, slots: Int32Array.of(...slots) },
        { begin: 0, slots: Int32Array.of(3) },
      ],
    });
    const [holes, window] = [Array.from({ length: 10 }, () => -1), [10, 11, 12, 13]];
    expect(checkRequestData(ask(1, 2, ...holes, ...window), windowed, null)).toBeNull();
    const refusal = (message: RequestData): string | undefined => checkRequestData(message, windowed, null)?.message;
    expect(refusal(ask(1, 2, 4, ...holes.slice(1), ...window))).toMatch(/a slot for block 2, which it does not need/);
    expect(refusal(ask(1, -1, ...holes, ...window))).toMatch(/no slot for block 1/);
    expect(refusal(ask(...window))).toMatch(/has 4 blocks, .* needs 16/);
    const noState = { begin: 0, slots: new Int32Array(0) };
    const [run] = ask(1, 2, ...holes, ...window).runs;
    if (run === undefined) throw new Error('no run');
    expect(refusal({ ...good, promptLen: 64, runs: [run, noState] })).toMatch(/layer group 1 has 0 blocks/);
  });

  it('of a context parallel rank: the blocks it owns', () => {
    const second = { ...peer, info: { ...peer.info, cpSize: 2, cpRank: 1 } };
    const ask = (begin: number, ...slots: number[]) => ({ ...good, runs: [{ begin, slots: Int32Array.of(...slots) }] });
    expect(checkRequestData(ask(1, 9, 31), second, null)).toBeNull();
    expect(checkRequestData(ask(1, 9), second, null)?.message).toMatch(/has 1 blocks, .* needs 2/);
    expect(checkRequestData(ask(0, 9, 31), second, null)?.message).toMatch(/does not own/);
  });

  for (const [what, change, message] of bad)
    it(`refuses ${what}`, () => {
      const error = checkRequestData({ ...good, ...change }, peer, request);
      expect(error?.code).toBe('ERR_KVT_PROTOCOL');
      expect(error?.message).toMatch(message);
    });
});
