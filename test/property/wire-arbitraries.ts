import fc from 'fast-check';
import type { BlockRun } from '../../src/geometry/block-run.js';
import type { Finding } from '../../src/mapping/compatibility.js';
import type { PagePool, PageTable, PageTableGroup, PoolMemory } from '../../src/mapping/page-table.js';
import type { RankInfo } from '../../src/mapping/rank-info.js';
import { flatRank } from '../../src/mapping/rank-place.js';
import type { Message } from '../../src/wire/messages.js';

const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
const ordinal = fc.integer({ min: 0, max: 0x7fff_ffff });
const u64 = fc.bigInt({ min: 0n, max: 0xffff_ffff_ffff_ffffn });
export const incarnation = u64;

const host = fc.oneof(
  fc.ipV4(),
  fc.constantFrom('localhost', 'node-17.cluster.example', 'a', `${'x'.repeat(60)}.${'y'.repeat(60)}`),
);
const endpoint = fc.tuple(host, fc.integer({ min: 1, max: 65535 })).map(([name, port]) => `tcp://${name}:${port}`);
const ascii = (maxLength: number) =>
  fc.string({ unit: fc.integer({ min: 0x20, max: 0x7e }).map((code) => String.fromCharCode(code)), maxLength });
const text = fc.string({ unit: 'grapheme', maxLength: 60 });

const run: fc.Arbitrary<BlockRun> = fc.record({
  begin: fc.integer({ min: 0, max: 1_000_000 }),
  slots: fc.array(fc.integer({ min: -1, max: 0x7fff_ffff }), { maxLength: 40 }).map((slots) => Int32Array.from(slots)),
});

const memory: fc.Arbitrary<PoolMemory> = fc.oneof(
  fc.constant({ kind: 'host' as const }),
  fc.record({ kind: fc.constant('device' as const), deviceId: fc.integer({ min: 0, max: 15 }) }),
);

/** One group in a pool of its own; its entries lie one after the other, so that the table is one a peer may publish. */
interface GroupDraft {
  readonly pool: PagePool;
  readonly group: PageTableGroup;
}

const ROLES = ['kv', 'latent', 'index_k', 'scale', 'conv_state', 'ssm_state'] as const;

const groupDraft = (poolIndex: number, kinds: readonly PageTableGroup['kind'][], viewCount: number) =>
  fc
    .record({
      kind: fc.constantFrom(...kinds),
      windowSize: fc.option(fc.integer({ min: 1, max: 100_000 }), { nil: null }),
      tokensPerBlock: fc.integer({ min: 1, max: 256 }),
      slotCount: fc.integer({ min: 1, max: 1000 }),
      // A pool takes 2^46 bytes at most, so that no two meet.
      base: fc.integer({ min: 0, max: 2 ** 47 }).map((base) => poolIndex * 2 ** 48 + base),
      padding: fc.integer({ min: 0, max: 4096 }),
      memory,
      roles: fc.uniqueArray(fc.constantFrom(...ROLES), { minLength: 1, maxLength: viewCount }),
      dtype: fc.constantFrom('bf16', 'fp8_e4m3', 'fp32'),
      layout: fc.constantFrom('HND', 'NHD', 'REPLICATED', 'SECTIONED'),
      headsPerRank: fc.integer({ min: 1, max: 128 }),
      headDim: fc.integer({ min: 1, max: 1024 }),
      layers: fc.uniqueArray(fc.integer({ min: 0, max: 200 }), { minLength: 1, maxLength: 4 }),
      entryBytes: fc.oneof(fc.integer({ min: 1, max: 4096 }), fc.integer({ min: 1, max: 2 ** 32 })),
    })
    .map((draft): GroupDraft => {
      const layers = draft.layers.toSorted((a, b) => a - b);
      const views = draft.roles.map((role, view) => ({
        role,
        dtype: draft.dtype,
        layout: draft.layout,
        headsPerRank: draft.headsPerRank,
        headDim: draft.headDim,
        layers: layers.map((layer, index) => ({
          layer,
          pool: poolIndex,
          offset: (view * layers.length + index) * draft.entryBytes,
          bytes: draft.entryBytes,
        })),
      }));
      const { kind, tokensPerBlock, slotCount } = draft;
      const windowSize = kind === 'state' || kind === 'aux' ? null : draft.windowSize;
      const slotBytes = views.length * layers.length * draft.entryBytes;
      return {
        pool: { base: draft.base, memory: draft.memory, slotBytes, slotStride: slotBytes + draft.padding, slotCount },
        group: { kind, windowSize, tokensPerBlock, slotCount, views } as PageTableGroup,
      };
    });

const pageTable: fc.Arbitrary<PageTable> = fc.integer({ min: 0, max: 3 }).chain((groupCount) =>
  fc
    .tuple(
      fc.tuple(
        ...Array.from({ length: groupCount }, (_, index) => groupDraft(index, ['attention', 'latent', 'state'], 3)),
      ),
      fc.option(groupDraft(groupCount, ['aux'], 1), { nil: null }),
    )
    .map(([groups, aux]) => ({
      pools: [...groups, ...(aux === null ? [] : [aux])].map((draft) => draft.pool),
      layerGroups: groups.map((draft) => draft.group),
      aux: aux === null ? null : aux.group,
    })),
);

export const rankInfo: fc.Arbitrary<RankInfo> = fc
  .record({
    tpSize: fc.integer({ min: 1, max: 16 }),
    ppSize: fc.integer({ min: 1, max: 8 }),
    cpSize: fc.integer({ min: 1, max: 4 }),
    dpSize: fc.integer({ min: 1, max: 16 }),
  })
  .chain((sizes) =>
    fc.record({
      packageVersion: fc.constantFrom('0.1.0', '1.12.3-rc.1'),
      instanceName: text.map((name) => name.replace(/[\p{Cc}\p{Zl}\p{Zp}]/gu, '-')),
      incarnation: u64,
      tpSize: fc.constant(sizes.tpSize),
      tpRank: fc.integer({ min: 0, max: sizes.tpSize - 1 }),
      ppSize: fc.constant(sizes.ppSize),
      ppRank: fc.integer({ min: 0, max: sizes.ppSize - 1 }),
      cpSize: fc.constant(sizes.cpSize),
      cpRank: fc.integer({ min: 0, max: sizes.cpSize - 1 }),
      dpSize: fc.constant(sizes.dpSize),
      dpRank: fc.integer({ min: 0, max: sizes.dpSize - 1 }),
      attentionDp: fc.boolean(),
      layersPerStage: fc.array(fc.integer({ min: 0, max: 100 }), {
        minLength: sizes.ppSize,
        maxLength: sizes.ppSize,
      }),
      endpoint,
      agent: fc.constantFrom('host', 'nixl', 'sim'),
      agentMetadata: fc.uint8Array({ maxLength: 300 }),
      pageTable,
    }),
  )
  .map((info) => {
    const rank = flatRank(info);
    const rankEndpoints = Array.from({ length: info.tpSize * info.ppSize * info.cpSize }, (_, index) =>
      index === rank ? info.endpoint : `tcp://rank-${index}.example:4000`,
    );
    return { ...info, rank, rankEndpoints };
  }) as fc.Arbitrary<RankInfo>;

const finding: fc.Arbitrary<Finding> = fc.record({
  field: text,
  a: text,
  b: text,
  verdict: text,
  whichSideToChange: text,
});

const request = { rid: u64, ticket: u64 };
const load = { endpoint, sessions: u32, freeAuxSlots: u32 };
const type = <T extends string>(name: T) => fc.constant(name);

/** One arbitrary per message type; the compiler refuses a type that is missing here. */
export const MESSAGES: { readonly [Name in Message['type']]: fc.Arbitrary<Extract<Message, { type: Name }>> } = {
  HELLO: fc.record({
    type: type('HELLO'),
    nonce: u64,
    supportedMajors: fc.array(fc.integer({ min: 0, max: 255 }), { maxLength: 16 }),
    rankInfo,
  }),
  HELLO_ACK: fc.record({
    type: type('HELLO_ACK'),
    nonce: u64,
    endpoint,
    answer: fc.oneof(
      fc.record({ accepted: fc.constant(true as const), rankInfo }),
      fc.record({
        accepted: fc.constant(false as const),
        message: text,
        findings: fc.array(finding, { maxLength: 4 }),
      }),
    ),
  }),
  REQUEST_DATA: fc
    .record({
      type: type('REQUEST_DATA'),
      ...request,
      timeLeftMs: u32,
      promptLen: u32,
      cachedTokens: u32,
      auxSlot: fc.integer({ min: -1, max: 0x7fff_ffff }),
      endpoint,
      traceparent: ascii(60),
      runs: fc.array(run, { maxLength: 5 }),
      computed: fc.constantFrom({}, { isComputed: true } as const),
    })
    .map(({ computed, ...rest }) => ({ ...rest, ...computed })),
  ACCEPTED: fc.record({ type: type('ACCEPTED'), ...request }),
  SLICE_RESULT: fc
    .record({
      type: type('SLICE_RESULT'),
      ...request,
      sliceSeq: u32,
      isLast: fc.boolean(),
      ok: fc.boolean(),
      bytes: u64,
      blocks: fc.tuple(ordinal, ordinal),
    })
    .map(({ blocks: [a, b], ...rest }) => ({ ...rest, beginBlock: Math.min(a, b), endBlock: Math.max(a, b) })),
  WRITER_REPORT: fc.record({
    type: type('WRITER_REPORT'),
    ...request,
    outcome: fc.constantFrom('DONE', 'FAILED', 'CANCELLED', 'REFUSED'),
    slices: u32,
    bytes: u64,
    drained: fc.boolean(),
    errorCode: ascii(40),
    message: text,
  }),
  REPORT_ACK: fc.record({ type: type('REPORT_ACK'), ...request, drained: fc.boolean() }),
  CANCEL: fc.record({
    type: type('CANCEL'),
    ...request,
    from: fc.constantFrom('generation', 'context'),
    endpoint,
    reason: text,
  }),
  CANCEL_ACK: fc.record({ type: type('CANCEL_ACK'), ...request }),
  STATUS: fc.record({ type: type('STATUS'), ...request, endpoint }),
  PING: fc.record({ type: type('PING'), ...load }),
  PONG: fc.record({ type: type('PONG'), ...load }),
  GOODBYE: fc.record({ type: type('GOODBYE'), endpoint, drainMs: u32, reason: text }),
  ERROR: fc.record({ type: type('ERROR'), rid: u64, code: ascii(40), text }),
};

export const anyMessage: fc.Arbitrary<Message> = fc.oneof(...Object.values(MESSAGES));
