import { encode } from '@msgpack/msgpack';
import { describe, expect, it } from 'vitest';
import { ArgumentError, RequestTooLargeError, WireError } from '../../../src/errors.js';
import type { RankInfo } from '../../../src/mapping/rank-info.js';
import { decodeFrame, encodeFrame } from '../../../src/wire/frame-codec.js';
import { negotiateMajor, negotiateMinor, peekHeader } from '../../../src/wire/frame-header.js';
import { MAX_FRAME_BYTES } from '../../../src/wire/limits.js';
import type { Message, RequestData } from '../../../src/wire/messages.js';

const REQUEST: RequestData = {
  type: 'REQUEST_DATA',
  rid: 77n,
  ticket: 1n,
  timeLeftMs: 1000,
  promptLen: 64,
  cachedTokens: 0,
  auxSlot: 0,
  endpoint: 'tcp://127.0.0.1:4000',
  traceparent: '',
  runs: [{ begin: 0, slots: Int32Array.of(1, 2) }],
};

const INFO: RankInfo = {
  packageVersion: '0.1.0',
  instanceName: 'ctx-0',
  incarnation: 9n,
  rank: 1,
  tpSize: 2,
  tpRank: 1,
  ppSize: 1,
  ppRank: 0,
  cpSize: 1,
  cpRank: 0,
  dpSize: 1,
  dpRank: 0,
  attentionDp: false,
  layersPerStage: [2],
  endpoint: 'tcp://127.0.0.1:4000',
  rankEndpoints: ['tcp://127.0.0.1:3999', 'tcp://127.0.0.1:4000'],
  agent: 'host',
  agentMetadata: Uint8Array.of(1, 2, 3),
  pageTable: {
    pools: [{ base: 4096, memory: { kind: 'host' }, slotBytes: 64, slotStride: 128, slotCount: 10 }],
    layerGroups: [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: 32,
        slotCount: 10,
        views: [
          {
            role: 'kv',
            dtype: 'bf16',
            layout: 'HND',
            headsPerRank: 4,
            headDim: 128,
            layers: [{ layer: 0, pool: 0, offset: 0, bytes: 64 }],
          },
        ],
      },
    ],
    aux: null,
  },
};

const encodeOne = (message: Message): Uint8Array => encodeFrame(message, { incarnation: 5n }).slice();

function refusal(bytes: Uint8Array): WireError {
  try {
    decodeFrame(bytes);
  } catch (error) {
    if (error instanceof WireError) return error;
    throw error;
  }
  throw new Error('the frame was not refused');
}

/** A HELLO with other values at dotted paths; undefined removes the field. */
function helloWith(changes: Readonly<Record<string, unknown>> = {}): Uint8Array {
  const hello: object = { nonce: 1n, supportedMajors: [1], rankInfo: structuredClone(INFO) };
  for (const [path, value] of Object.entries(changes)) {
    const keys = path.split('.');
    const last = keys.pop() as string;
    const parent = keys.reduce((node, key) => Reflect.get(node, key), hello);
    if (value === undefined) Reflect.deleteProperty(parent, last);
    else Reflect.set(parent, last, value);
  }
  const header = encodeOne({ type: 'HELLO', nonce: 1n, supportedMajors: [1], rankInfo: INFO }).subarray(0, 24);
  return Buffer.concat([header, encode(hello, { useBigInt64: true })]);
}

describe('header', () => {
  it('refuses what is not a control frame', () => {
    expect(refusal(new Uint8Array(0)).reason).toBe('truncated');
    expect(refusal(Buffer.from('GET / HTTP/1.1\r\nHost: example\r\n')).reason).toBe('bad-magic');
  });

  it('refuses a major it does not speak and says what to do', () => {
    const bytes = encodeOne(REQUEST);
    bytes[4] = 2;
    const error = refusal(bytes);
    expect(error.reason).toBe('unsupported-major');
    expect(error.message).toContain('upgrade the older side');
    expect(error.details).toEqual({ reason: 'unsupported-major', typeNumber: 3, rid: 77n, incarnation: 5n });
  });

  it('an unknown type is skipped, unless it must be understood', () => {
    const bytes = encodeOne({ type: 'ACCEPTED', rid: 4n, ticket: 1n });
    bytes[6] = 200;
    expect(decodeFrame(bytes)).toEqual({
      major: 1,
      minor: 0,
      incarnation: 5n,
      message: { type: 'UNKNOWN', typeNumber: 200, rid: 4n },
    });
    bytes[7] = 1;
    const error = refusal(bytes);
    expect(error.reason).toBe('unknown-type');
    expect(error.details).toEqual({ reason: 'unknown-type', typeNumber: 200, rid: 4n, incarnation: 5n });
  });

  it('what a newer minor appends is ignored; our own minor appends nothing', () => {
    const message: Message = { type: 'ACCEPTED', rid: 4n, ticket: 1n };
    const longer = Buffer.concat([encodeFrame(message, { incarnation: 5n, minor: 1 }), Uint8Array.of(1, 2, 3)]);
    expect(decodeFrame(longer)).toEqual({ major: 1, minor: 1, incarnation: 5n, message });
    longer[5] = 0;
    expect(refusal(longer).reason).toBe('trailing-bytes');
  });

  it('negotiates versions', () => {
    expect([negotiateMajor([0, 1, 2]), negotiateMajor([2, 3]), negotiateMajor([])]).toEqual([1, null, null]);
    expect([negotiateMinor(0), negotiateMinor(7)]).toEqual([0, 0]);
  });

  it('can be peeked at when the rest is refused', () => {
    expect(peekHeader(new Uint8Array(23))).toBeNull();
    expect(peekHeader(new Uint8Array(24))).toBeNull();
    expect(peekHeader(encodeOne(REQUEST))).toEqual({
      major: 1,
      minor: 0,
      typeNumber: 3,
      mustUnderstand: true,
      isComputed: false,
      incarnation: 5n,
      rid: 77n,
    });
  });

  it('says of REQUEST_DATA alone whether its prompt is computed', () => {
    const computed = encodeOne({ ...REQUEST, isComputed: true });
    expect(computed[7]).toBe(3);
    expect(decodeFrame(computed).message).toMatchObject({ isComputed: true });
    computed[7] = 1;
    expect(decodeFrame(computed).message).not.toHaveProperty('isComputed');
    const ping = encodeOne({ type: 'ACCEPTED', rid: 4n, ticket: 1n });
    ping[7] = 2;
    expect(decodeFrame(ping).message).toEqual({ type: 'ACCEPTED', rid: 4n, ticket: 1n });
  });
});

describe('fixed bodies', () => {
  const bodyAt = 24;

  it('a slot count that the frame cannot hold is refused before anything is allocated', () => {
    const bytes = encodeOne(REQUEST);
    const view = new DataView(bytes.buffer);
    const countAt = bytes.length - 12;
    expect(view.getUint32(countAt, true)).toBe(2);
    view.setUint32(countAt, 0xffff_ffff, true);
    expect(refusal(bytes).reason).toBe('truncated');
  });

  it('more than 256 layer groups', () => {
    const runs = Array.from({ length: 256 }, () => ({ begin: 0, slots: new Int32Array(0) }));
    const bytes = encodeOne({ ...REQUEST, runs });
    expect(decodeFrame(bytes).message).toMatchObject({ runs });
    const groupCountAt = bodyAt + 8 + 16 + 2 + REQUEST.endpoint.length + 2;
    new DataView(bytes.buffer).setUint16(groupCountAt, 257, true);
    expect(refusal(bytes).reason).toBe('count-over-cap');
    expect(() => encodeOne({ ...REQUEST, runs: [...runs, { begin: 0, slots: new Int32Array(0) }] })).toThrow(
      ArgumentError,
    );
  });

  it.each([
    ['a slot below HOLE', (view: DataView, end: number) => view.setInt32(end - 4, -2, true), 'bad-value'],
    [
      'a run beyond the last ordinal',
      (view: DataView, end: number) => view.setUint32(end - 16, 0x7fff_fffe, true),
      'bad-value',
    ],
    ['an aux slot below -1', (view: DataView) => view.setInt32(bodyAt + 20, -2, true), 'bad-value'],
    ['an endpoint of another transport', (view: DataView) => view.setUint8(bodyAt + 26, 0x78), 'bad-endpoint'],
    ['an endpoint with a control character', (view: DataView) => view.setUint8(bodyAt + 33, 10), 'bad-string'],
    ['an endpoint that is not UTF-8', (view: DataView) => view.setUint8(bodyAt + 33, 0xff), 'bad-string'],
    ['an endpoint longer than its cap', (view: DataView) => view.setUint16(bodyAt + 24, 263, true), 'string-too-long'],
  ] as const)('%s', (_name, spoil, reason) => {
    const bytes = encodeOne(REQUEST);
    spoil(new DataView(bytes.buffer), bytes.length);
    expect(refusal(bytes).reason).toBe(reason);
  });

  it('reserved values of small fields', () => {
    const report = encodeOne({
      type: 'WRITER_REPORT',
      rid: 1n,
      ticket: 1n,
      outcome: 'DONE',
      slices: 1,
      bytes: 1n,
      drained: true,
      errorCode: '',
      message: '',
    });
    const outcome = report.slice();
    outcome[bodyAt + 8] = 9;
    expect(refusal(outcome).message).toContain('unknown outcome 9');
    const drained = report.slice();
    drained[bodyAt + 9] = 2;
    expect(refusal(drained).message).toContain('drained must be 0 or 1');

    const cancel = encodeOne({
      type: 'CANCEL',
      rid: 1n,
      ticket: 1n,
      from: 'context',
      endpoint: REQUEST.endpoint,
      reason: '',
    });
    cancel[bodyAt + 8] = 3;
    expect(refusal(cancel).message).toContain('unknown side 3');

    const slice = encodeOne({
      type: 'SLICE_RESULT',
      rid: 1n,
      ticket: 1n,
      sliceSeq: 0,
      isLast: true,
      ok: true,
      bytes: 0n,
      beginBlock: 4,
      endBlock: 5,
    });
    slice[slice.length - 8] = 6;
    expect(refusal(slice).message).toContain('[6, 5) is not a range');
  });

  it('a decoded request does not share the memory of its frame', () => {
    const bytes = encodeOne(REQUEST);
    const { message } = decodeFrame(bytes);
    if (message.type !== 'REQUEST_DATA') throw new Error('wrong type');
    bytes.fill(0);
    expect(message).toEqual(REQUEST);
    expect(message.runs[0]?.slots.buffer.byteLength).toBe(8);
  });
});

describe('encoding', () => {
  it('refuses values that do not fit', () => {
    const bad: Message[] = [
      { ...REQUEST, promptLen: -1 },
      { ...REQUEST, promptLen: 1.5 },
      { ...REQUEST, promptLen: 2 ** 32 },
      { ...REQUEST, timeLeftMs: Number.NaN },
      { ...REQUEST, ticket: -1n },
      { ...REQUEST, rid: 2n ** 64n },
      { ...REQUEST, endpoint: 'ipc:///tmp/x' },
      { ...REQUEST, traceparent: 'x'.repeat(129) },
      { ...REQUEST, runs: [{ begin: 0, slots: Int32Array.of(-2) }] },
      { ...REQUEST, runs: [{ begin: 0x7fff_ffff, slots: Int32Array.of(0) }] },
      { type: 'PING', endpoint: REQUEST.endpoint, sessions: -1, freeAuxSlots: 0 },
      { type: 'UNKNOWN' } as unknown as Message,
    ];
    for (const message of bad) expect(() => encodeOne(message)).toThrow(ArgumentError);
    expect(() => encodeFrame(REQUEST, { incarnation: -1n })).toThrow(ArgumentError);
  });

  it('rounds the time left down and keeps it in range', () => {
    const timeLeft = (timeLeftMs: number) => {
      const { message } = decodeFrame(encodeOne({ ...REQUEST, timeLeftMs }));
      return message.type === 'REQUEST_DATA' ? message.timeLeftMs : null;
    };
    expect([1.9, 0.2, -5, 2 ** 40, Number.POSITIVE_INFINITY].map(timeLeft)).toEqual([
      1, 0, 0, 0xffff_ffff, 0xffff_ffff,
    ]);
  });

  it('cuts long texts at a character, so that a failure can always be reported', () => {
    const { message } = decodeFrame(encodeOne({ type: 'ERROR', rid: 0n, code: 'c', text: `${'x'.repeat(2047)}é` }));
    expect(message).toEqual({ type: 'ERROR', rid: 0n, code: 'c', text: 'x'.repeat(2047) });
    const ack = decodeFrame(
      encodeOne({
        type: 'HELLO_ACK',
        nonce: 1n,
        endpoint: REQUEST.endpoint,
        answer: {
          accepted: false,
          message: 'é'.repeat(5000),
          findings: Array.from({ length: 300 }, (_, i) => ({
            field: 'f'.repeat(300),
            a: `${i}`,
            // Fewer characters than the bound, and more bytes.
            b: '€'.repeat(700),
            verdict: '',
            whichSideToChange: '',
          })),
        },
      }),
    ).message;
    if (ack.type !== 'HELLO_ACK' || ack.answer.accepted) throw new Error('wrong answer');
    expect(ack.answer.message).toBe('é'.repeat(1024));
    expect(ack.answer.findings).toHaveLength(256);
    expect(ack.answer.findings[0]).toMatchObject({ field: 'f'.repeat(256), b: '€'.repeat(682) });
  });

  it('a frame of exactly 16 MiB passes, one slot more does not', () => {
    const overhead = encodeOne({ ...REQUEST, runs: [{ begin: 0, slots: new Int32Array(0) }] }).length;
    const traceparent = 'x'.repeat((MAX_FRAME_BYTES - overhead) % 4);
    const slots = new Int32Array((MAX_FRAME_BYTES - overhead - traceparent.length) / 4);
    const bytes = encodeOne({ ...REQUEST, traceparent, runs: [{ begin: 0, slots }] });
    expect(bytes.length).toBe(MAX_FRAME_BYTES);
    const { message } = decodeFrame(bytes);
    expect(message.type === 'REQUEST_DATA' && message.runs[0]?.slots.length).toBe(slots.length);
    expect(() => encodeOne({ ...REQUEST, runs: [{ begin: 0, slots: new Int32Array(slots.length + 1) }] })).toThrow(
      RequestTooLargeError,
    );
    expect(refusal(new Uint8Array(MAX_FRAME_BYTES + 1)).reason).toBe('frame-too-large');
  });
});

describe('HELLO', () => {
  it('unknown fields are ignored, wide integers accepted', () => {
    const bytes = helloWith({ later: { a: [1, 2] }, 'rankInfo.color': 'red', 'rankInfo.tpSize': 2n, nonce: 1 });
    expect(decodeFrame(bytes).message).toEqual({ type: 'HELLO', nonce: 1n, supportedMajors: [1], rankInfo: INFO });
  });

  it('a rank info that was read before is the same one; what is not equal to it, byte by byte, is read', () => {
    const infoOf = (bytes: Uint8Array): RankInfo => {
      const { message } = decodeFrame(bytes);
      if (message.type !== 'HELLO') throw new Error('wrong type');
      return message.rankInfo;
    };
    const first = infoOf(helloWith());
    expect(infoOf(helloWith({ nonce: 2n, supportedMajors: [1, 2] }))).toBe(first);
    expect(infoOf(helloWith({ 'rankInfo.incarnation': 10n }))).toEqual({ ...INFO, incarnation: 10n });
    expect(refusal(helloWith({ 'rankInfo.rank': 0 })).reason).toBe('bad-value');
    expect(refusal(helloWith({ 'rankInfo.rank': 0 })).reason).toBe('bad-value');
    expect(infoOf(helloWith())).toBe(first);
  });

  it('a second rank info under another spelling of the key does not pass for the first', () => {
    // `rankInfo` as a string of 8-bit length: of two entries with one name, decoders take the last.
    const other = { ...structuredClone(INFO), incarnation: 77n };
    const body = helloWith().subarray(24);
    const twice = Buffer.concat([
      helloWith().subarray(0, 24),
      Uint8Array.of((body[0] as number) + 1),
      body.subarray(1),
      Uint8Array.of(0xd9, 8),
      Buffer.from('rankInfo'),
      encode(other, { useBigInt64: true }),
    ]);
    decodeFrame(twice);
    const { message } = decodeFrame(helloWith());
    expect(message).toEqual({ type: 'HELLO', nonce: 1n, supportedMajors: [1], rankInfo: INFO });
  });

  it('the metadata does not keep the frame alive', () => {
    const { message } = decodeFrame(helloWith());
    if (message.type !== 'HELLO') throw new Error('wrong type');
    expect(message.rankInfo.agentMetadata.buffer.byteLength).toBe(3);
  });

  const TABLE = 'rankInfo.pageTable';
  const GROUP = `${TABLE}.layerGroups.0`;
  const LAYER = `${GROUP}.views.0.layers.0`;
  it.each([
    ['rankInfo missing', { rankInfo: undefined }, 'bad-value', 'hello.rankInfo must be a map, got nothing'],
    ['a fraction', { 'rankInfo.rank': 1.5 }, 'bad-value', 'hello.rankInfo.rank must be an integer'],
    ['a rank outside its size', { 'rankInfo.tpRank': 2 }, 'bad-value', 'tpRank must be an integer in [0, 1]'],
    ['too many ranks', { 'rankInfo.tpSize': 65536, 'rankInfo.cpSize': 2 }, 'count-over-cap', 'at most 65536'],
    ['stages that do not match', { 'rankInfo.layersPerStage': [1, 1] }, 'bad-value', 'must have ppSize 1'],
    ['another agent', { 'rankInfo.agent': 'ftp' }, 'bad-value', 'one of host, nixl, sim, got "ftp"'],
    ['text for metadata', { 'rankInfo.agentMetadata': 'x' }, 'bad-value', 'must be bytes'],
    [
      'a rank that is not at its place',
      { 'rankInfo.rank': 0 },
      'bad-value',
      'rank is 0, but its place is that of rank 1',
    ],
    ['no rank endpoints', { 'rankInfo.rankEndpoints': undefined }, 'bad-value', 'rankEndpoints must be a list'],
    [
      'too few rank endpoints',
      { 'rankInfo.rankEndpoints': [INFO.endpoint] },
      'bad-value',
      'rankEndpoints has 1 entries for 2 ranks',
    ],
    [
      'too many rank endpoints',
      { 'rankInfo.rankEndpoints': ['tcp://a:1', INFO.endpoint, 'tcp://a:2'] },
      'count-over-cap',
      'rankEndpoints has 3 entries; at most 2',
    ],
    [
      'its own endpoint elsewhere',
      { 'rankInfo.rankEndpoints': [INFO.endpoint, 'tcp://a:1'] },
      'bad-value',
      'rankEndpoints[1] must be the endpoint of the rank that sent it',
    ],
    [
      'one endpoint for two ranks',
      { 'rankInfo.rankEndpoints': [INFO.endpoint, INFO.endpoint] },
      'bad-value',
      'names an endpoint twice',
    ],
    [
      'a file among the rank endpoints',
      { 'rankInfo.rankEndpoints': ['ipc:///x', INFO.endpoint] },
      'bad-endpoint',
      'rankEndpoints[0] must be tcp://host:port',
    ],
    ['a file as endpoint', { 'rankInfo.endpoint': 'ipc:///x' }, 'bad-endpoint', 'tcp://host:port'],
    ['too many majors', { supportedMajors: Array(17).fill(1) }, 'count-over-cap', 'at most 16'],
    ['a name of two lines', { 'rankInfo.instanceName': 'a\nb' }, 'bad-string', 'instanceName'],
    ['a name that moves the cursor', { 'rankInfo.instanceName': 'a\u001b[2K' }, 'bad-string', 'instanceName'],
    ['a long name', { 'rankInfo.instanceName': 'x'.repeat(257) }, 'string-too-long', 'instanceName'],
    ['a negative nonce', { nonce: -1 }, 'bad-value', 'hello.nonce must be an unsigned 64-bit integer'],
    ['a number for a boolean', { 'rankInfo.attentionDp': 1 }, 'bad-value', 'attentionDp must be a boolean, got 1'],
    ['a pool that is not there', { [`${LAYER}.pool`]: 1 }, 'bad-page-table', 'views[0].layers[0].pool'],
    ['a layer beyond its slot', { [`${LAYER}.offset`]: 1 }, 'bad-page-table', 'leaves its slot'],
    ['slots that overlap', { [`${TABLE}.pools.0.slotStride`]: 63 }, 'bad-page-table', 'slots would overlap'],
    ['a group of other slots', { [`${GROUP}.slotCount`]: 11 }, 'bad-page-table', 'in a group of 11'],
    ['a list for a page table', { [TABLE]: [] }, 'bad-page-table', 'got a list'],
    ['too many groups', { [`${TABLE}.layerGroups`]: Array(257).fill({}) }, 'bad-page-table', 'at most 256'],
    ['a list for a map', { rankInfo: [] }, 'bad-value', 'must be a map, got a list of 0'],
    ['a date', { nonce: new Date(0) }, 'bad-msgpack', 'has no place here'],
  ] as readonly (readonly [string, Record<string, unknown>, string, string])[])(
    'refuses %s',
    (_name, changes, reason, text) => {
      const error = refusal(helloWith(changes));
      expect(error.reason).toBe(reason);
      expect(error.message).toContain(text);
    },
  );

  it.each([
    ['one-byte values', [0xdd, 0, 0x10, 0, 0], 0xc0, 0x10_0000],
    ['empty maps', [0xdd, 0, 0x10, 0, 0], 0x80, 0x10_0000],
    ['values of one map', [0xdf, 0, 0, 0x04, 0x01], 0x01, 2 * 0x401],
  ] as const)('more %s than any page table has are refused before they are built', (_name, head, value, count) => {
    const header = helloWith().subarray(0, 24);
    const error = refusal(Buffer.concat([header, Uint8Array.from(head), new Uint8Array(count).fill(value)]));
    expect(error.reason).toBe('count-over-cap');
  });

  it('structures that claim more than they hold are refused before they are built', () => {
    const header = helloWith().subarray(0, 24);
    const body = (...bytes: number[]) => Buffer.concat([header, Uint8Array.from(bytes)]);
    // Each level of a nest of arrays would make the decoder allocate 2^32 - 1 entries.
    expect(refusal(body(0xdd, 0xff, 0xff, 0xff, 0xff)).reason).toBe('truncated');
    expect(refusal(body(0xdf, 0xff, 0xff, 0xff, 0xff)).reason).toBe('truncated');
    expect(refusal(body(0xc6, 0xff, 0xff, 0xff, 0xff)).reason).toBe('truncated');
    expect(refusal(body(...Array(40).fill(0x91), 0xc0)).reason).toBe('bad-msgpack');
    expect(refusal(body(0xc1)).reason).toBe('bad-msgpack');
    expect(refusal(body(0x80, 0x00)).reason).toBe('trailing-bytes');
    expect(refusal(body(0x81, 0xa9, ...Buffer.from('__proto__'), 0x80)).reason).toBe('bad-msgpack');
    expect(refusal(body(0x81, 0x90, 0x80)).reason).toBe('bad-msgpack');
    expect(refusal(body(0x05)).reason).toBe('bad-value');
    expect(refusal(body()).reason).toBe('truncated');
  });
});
