import { decode } from '@msgpack/msgpack';
import { describe, expect, it } from 'vitest';
import { decodeFrame, encodeFrame } from '../../../src/wire/frame-codec.js';
import { type Message, MessageType, WriterOutcome } from '../../../src/wire/messages.js';

/** Bytes written by hand from the drawings, so that neither side of the codec can drift with the other. */
const INCARNATION = 0x1122334455667788n;
const header = (type: string, flags: string, rid: string) => `4b565431 01 00 ${type} ${flags} 8877665544332211 ${rid}`;
const NO_RID = '0000000000000000';
const RID = '0201000000000080';
const rid = 0x8000000000000102n;
const TICKET = '0a00000000000000';
const ticket = 10n;
/** tcp://10.0.0.7:9 */
const ENDPOINT = '1000 7463703a2f2f31302e302e302e373a39';
const endpoint = 'tcp://10.0.0.7:9';

const VECTORS: readonly (readonly [Message, string])[] = [
  [
    {
      type: 'REQUEST_DATA',
      rid,
      ticket,
      timeLeftMs: 60_000,
      promptLen: 4097,
      cachedTokens: 64,
      auxSlot: -1,
      endpoint,
      traceparent: 'ab',
      runs: [
        { begin: 2, slots: Int32Array.of(7, -1, 0x01020304) },
        { begin: 0, slots: new Int32Array(0) },
      ],
    },
    `${header('03', '01', RID)} ${TICKET} 60ea0000 01100000 40000000 ffffffff ${ENDPOINT} 0200 6162
     0200 02000000 03000000 07000000 ffffffff 04030201 00000000 00000000`,
  ],
  [{ type: 'ACCEPTED', rid, ticket }, `${header('04', '00', RID)} ${TICKET}`],
  [
    {
      type: 'SLICE_RESULT',
      rid,
      ticket,
      sliceSeq: 3,
      isLast: true,
      ok: false,
      bytes: 0x100000001n,
      beginBlock: 16,
      endBlock: 32,
    },
    `${header('05', '00', RID)} ${TICKET} 03000000 01 00 0100000001000000 10000000 20000000`,
  ],
  [
    {
      type: 'WRITER_REPORT',
      rid,
      ticket,
      outcome: 'FAILED',
      slices: 4,
      bytes: 255n,
      drained: true,
      errorCode: 'ERR_KVT_TRANSPORT',
      message: 'é',
    },
    `${header('06', '01', RID)} ${TICKET} 02 01 04000000 ff00000000000000
     1100 4552525f4b56545f5452414e53504f5254 0200 c3a9`,
  ],
  [{ type: 'REPORT_ACK', rid, ticket, drained: true }, `${header('07', '00', RID)} ${TICKET} 01`],
  [
    { type: 'CANCEL', rid, ticket, from: 'context', endpoint, reason: 'no' },
    `${header('08', '01', RID)} ${TICKET} 02 ${ENDPOINT} 0200 6e6f`,
  ],
  [{ type: 'CANCEL_ACK', rid, ticket }, `${header('09', '00', RID)} ${TICKET}`],
  [{ type: 'STATUS', rid, ticket, endpoint }, `${header('0a', '01', RID)} ${TICKET} ${ENDPOINT}`],
  [
    { type: 'PING', endpoint, sessions: 1, freeAuxSlots: 258 },
    `${header('0b', '00', NO_RID)} 01000000 02010000 ${ENDPOINT}`,
  ],
  [
    { type: 'PONG', endpoint, sessions: 0, freeAuxSlots: 0 },
    `${header('0c', '00', NO_RID)} 00000000 00000000 ${ENDPOINT}`,
  ],
  [
    { type: 'GOODBYE', endpoint, drainMs: 500, reason: 'bye' },
    `${header('0d', '00', NO_RID)} f4010000 ${ENDPOINT} 0300 627965`,
  ],
  [{ type: 'ERROR', rid, code: 'c', text: 't' }, `${header('0e', '00', RID)} 0100 63 0100 74`],
  [
    {
      type: 'HELLO_ACK',
      nonce: 5n,
      endpoint,
      answer: { accepted: false, message: 'm', findings: [] },
    },
    // map of 5: nonce uint64, endpoint str, accepted false, message str, findings empty list
    `${header('02', '00', NO_RID)} 85
     a5 6e6f6e6365 cf 0000000000000005
     a8 656e64706f696e74 b0 7463703a2f2f31302e302e302e373a39
     a8 6163636570746564 c2
     a7 6d657373616765 a1 6d
     a8 66696e64696e6773 90`,
  ],
];

const fromHex = (hex: string): Uint8Array => Uint8Array.from(Buffer.from(hex.replace(/\s/g, ''), 'hex'));

describe('literal frames', () => {
  it.each(VECTORS.map(([message, hex]) => [message.type, message, hex] as const))('%s', (_type, message, hex) => {
    const bytes = fromHex(hex);
    expect(Buffer.from(encodeFrame(message, { incarnation: INCARNATION })).toString('hex')).toBe(
      Buffer.from(bytes).toString('hex'),
    );
    expect(decodeFrame(bytes)).toEqual({ major: 1, minor: 0, incarnation: INCARNATION, message });
  });

  it('numbers of types and outcomes are fixed', () => {
    expect(MessageType).toEqual({
      HELLO: 1,
      HELLO_ACK: 2,
      REQUEST_DATA: 3,
      ACCEPTED: 4,
      SLICE_RESULT: 5,
      WRITER_REPORT: 6,
      REPORT_ACK: 7,
      CANCEL: 8,
      CANCEL_ACK: 9,
      STATUS: 10,
      PING: 11,
      PONG: 12,
      GOODBYE: 13,
      ERROR: 14,
    });
    expect(WriterOutcome).toEqual({ DONE: 1, FAILED: 2, CANCELLED: 3, REFUSED: 4 });
  });

  it('reads a frame that lies unaligned inside a larger buffer', () => {
    const [message, hex] = VECTORS[0] as (typeof VECTORS)[number];
    const bytes = fromHex(hex);
    const larger = new Uint8Array(bytes.length + 9);
    larger.set(bytes, 5);
    expect(decodeFrame(larger.subarray(5, 5 + bytes.length)).message).toEqual(message);
  });
});

it('HELLO has these msgpack keys, in this order', () => {
  const bytes = encodeFrame(
    {
      type: 'HELLO',
      nonce: 5n,
      supportedMajors: [1],
      rankInfo: {
        packageVersion: '0.1.0',
        instanceName: 'ctx',
        incarnation: 9n,
        rank: 0,
        tpSize: 1,
        tpRank: 0,
        ppSize: 1,
        ppRank: 0,
        cpSize: 1,
        cpRank: 0,
        dpSize: 1,
        dpRank: 0,
        attentionDp: false,
        layersPerStage: [1],
        endpoint,
        rankEndpoints: [endpoint],
        agent: 'host',
        agentMetadata: Uint8Array.of(1),
        pageTable: {
          pools: [
            { base: 2 ** 40, memory: { kind: 'device', deviceId: 3 }, slotBytes: 64, slotStride: 64, slotCount: 2 },
          ],
          layerGroups: [
            {
              kind: 'latent',
              windowSize: null,
              tokensPerBlock: 32,
              slotCount: 2,
              views: [
                {
                  role: 'latent',
                  dtype: 'bf16',
                  layout: 'REPLICATED',
                  headsPerRank: 1,
                  headDim: 1,
                  layers: [{ layer: 0, pool: 0, offset: 0, bytes: 64 }],
                },
              ],
            },
          ],
          aux: null,
        },
      },
    },
    { incarnation: INCARNATION },
  );
  expect(
    JSON.stringify(decode(bytes.subarray(24)), (_, value) => (value instanceof Uint8Array ? [...value] : value)),
  ).toBe(
    '{"nonce":5,"supportedMajors":[1],"rankInfo":{"packageVersion":"0.1.0","instanceName":"ctx","incarnation":9,"rank":0,' +
      '"tpSize":1,"tpRank":0,"ppSize":1,"ppRank":0,"cpSize":1,"cpRank":0,"dpSize":1,"dpRank":0,"attentionDp":false,' +
      '"layersPerStage":[1],"endpoint":"tcp://10.0.0.7:9","rankEndpoints":["tcp://10.0.0.7:9"],' +
      '"agent":"host","agentMetadata":[1],"pageTable":{"pools":[' +
      '{"base":1099511627776,"memory":{"kind":"device","deviceId":3},"slotBytes":64,"slotStride":64,"slotCount":2}],' +
      '"layerGroups":[{"kind":"latent","windowSize":null,"tokensPerBlock":32,"slotCount":2,"views":[{"role":"latent",' +
      '"dtype":"bf16","layout":"REPLICATED","headsPerRank":1,"headDim":1,"layers":[{"layer":0,"pool":0,"offset":0,"bytes":64}]}]}],' +
      '"aux":null}}}',
  );
});
