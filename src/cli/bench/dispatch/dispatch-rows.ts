import { SystemClock } from '../../../clock.js';
import { buildPageTable, rebasePageTable } from '../../../mapping/build-page-table.js';
import { mapPeer } from '../../../mapping/peer-mapping.js';
import { planSlice } from '../../../mapping/plan-slice.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { openAgent } from '../open-agent.js';
import { SeededRandom, shuffle } from '../seeded-random.js';
import { type Percentiles, percentilesOf } from '../statistics.js';

/** First slices run cold code. */
const WARM_UP_ROUNDS = 30;

/** What the slices of some rows are made of. */
export interface DispatchShape {
  readonly layers: number;
  readonly headDim: number;
  /** Block size of the sender, and of the receiver: one is a multiple of the other. */
  readonly senderTokensPerBlock: number;
  readonly receiverTokensPerBlock: number;
  /** Of each row, counted in the smaller of the two blocks. */
  readonly blocks: readonly number[];
}

export interface DispatchRow {
  /** Blocks, as the side with the smaller ones counts, times layers. */
  readonly moves: number;
  readonly descriptors: number;
  /** Pairs of blocks. */
  readonly pairs: number;
  readonly layers: number;
  readonly senderTokensPerBlock: number;
  readonly receiverTokensPerBlock: number;
  /** Of all parts of a block. */
  readonly fragments: number;
  readonly agent: string;
  /** Planning and handing over one slice, on the JavaScript thread. */
  readonly jsThreadUs: Percentiles;
  readonly planUs: Percentiles;
  readonly submitUs: Percentiles;
  /** From the return of `submit` to the native thread's first post. */
  readonly nativeBeforePostUs: Percentiles;
  readonly samples: readonly DispatchSample[];
}

interface DispatchSample {
  readonly planUs: number;
  readonly submitUs: number;
  readonly nativeBeforePostUs: number;
}

/** Two agents of this process: the receiving one only lends its memory. */
export async function measureShape(
  shape: DispatchShape,
  agent: 'host' | 'nixl',
  rounds: number,
): Promise<readonly DispatchRow[]> {
  const { layers, senderTokensPerBlock, receiverTokensPerBlock } = shape;
  const small = Math.min(senderTokensPerBlock, receiverTokensPerBlock);
  const most = Math.max(...shape.blocks);
  const [senderShare, receiverShare] = [senderTokensPerBlock / small, receiverTokensPerBlock / small];
  const [from, to] = [
    tableOf(shape, senderTokensPerBlock, most / senderShare),
    tableOf(shape, receiverTokensPerBlock, most / receiverShare),
  ];
  const sender = await openAgent(agent, null, 'dispatch-sender');
  const receiver = await openAgent(agent, null, 'dispatch-receiver');
  try {
    const local = rebasePageTable(from.table, (await sender.agent.allocatePool({ sizeBytes: from.sizeBytes })).base);
    const remote = rebasePageTable(to.table, (await receiver.agent.allocatePool({ sizeBytes: to.sizeBytes })).base);
    const peer = await sender.agent.addPeer(await receiver.agent.metadata(), 'dispatch-receiver');
    const mapping = mapPeer(local, remote);
    // One layer group: its parts are all there is.
    const fragments = mapping.groups.map((group) =>
      sender.agent.prepareFragments(peer, local, remote, group.fragments),
    );
    const clock = new SystemClock();
    const settled = new CompletionWaiter();
    sender.agent.onCompletions((batch) => settled.accept(batch));

    let submission = 0;
    const rows: DispatchRow[] = [];
    for (const blocks of shape.blocks) {
      const samples: DispatchSample[] = [];
      let stats = null;
      for (let round = -WARM_UP_ROUNDS; round < rounds; round++) {
        const source = randomRun(most / senderShare, blocks / senderShare, 2 * submission);
        const destination = randomRun(most / receiverShare, blocks / receiverShare, 2 * submission + 1);
        submission++;
        const done = settled.expect(submission);
        const startMs = clock.now();
        const plan = planSlice(mapping, [source], [destination]);
        const plannedMs = clock.now();
        sender.agent.submit({
          id: submission,
          peer,
          flow: 1,
          groups: plan.groups.map((group) => ({
            fragments: fragments[group.part] as (typeof fragments)[number],
            slotPairs: group.slotPairs,
          })),
          after: null,
        });
        const submittedMs = clock.now();
        const completion = await done;
        if (completion.status !== 'transferred') throw completion.error ?? new Error(`slice ${completion.status}`);
        stats = plan.stats;
        if (round < 0) continue;
        samples.push({
          planUs: (plannedMs - startMs) * 1e3,
          submitUs: (submittedMs - plannedMs) * 1e3,
          nativeBeforePostUs: Math.max(0, ((completion.postedAtMs ?? submittedMs) - submittedMs) * 1e3),
        });
      }
      const spread = (pick: (sample: DispatchSample) => number): Percentiles =>
        percentilesOf(samples.map(pick)) as Percentiles;
      rows.push({
        moves: blocks * layers,
        descriptors: stats?.descriptors ?? 0,
        pairs: stats?.pairs ?? 0,
        layers,
        senderTokensPerBlock,
        receiverTokensPerBlock,
        fragments: stats?.fragments ?? 0,
        agent,
        jsThreadUs: spread((sample) => sample.planUs + sample.submitUs),
        planUs: spread((sample) => sample.planUs),
        submitUs: spread((sample) => sample.submitUs),
        nativeBeforePostUs: spread((sample) => sample.nativeBeforePostUs),
        samples,
      });
    }
    return rows;
  } finally {
    await sender.agent.close(2000);
    await receiver.agent.close(2000);
  }
}

/** Small pages: the cost of handing a slice over does not depend on its bytes. */
function tableOf({ layers, headDim }: DispatchShape, tokensPerBlock: number, slotCount: number) {
  const layerIds = Array.from({ length: layers }, (_, layer) => layer);
  return buildPageTable({
    groups: [{ kind: 'attention', windowSize: null, tokensPerBlock, layers: layerIds, slotCount }],
    kvHeads: 1,
    headDim,
    dtype: 'bfloat16',
    poolLayout: 'per-layer',
    blockLayout: 'HND',
  });
}

/** `count` slots in random order, as a used cache manager would hand them out. */
function randomRun(
  slotCount: number,
  count: number,
  seed: number,
): { readonly begin: number; readonly slots: Int32Array } {
  const all = shuffle(
    Int32Array.from({ length: slotCount }, (_, slot) => slot),
    new SeededRandom(BigInt(seed + 1)),
  );
  return { begin: 0, slots: all.slice(0, count) };
}
