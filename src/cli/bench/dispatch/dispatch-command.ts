import { SystemClock } from '../../../clock.js';
import { buildPageTable, rebasePageTable } from '../../../mapping/build-page-table.js';
import { mapPeer } from '../../../mapping/peer-mapping.js';
import { planSlice } from '../../../mapping/plan-slice.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { type OptionValues, readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { nixlFacts, requireAgent } from '../agent-availability.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { checkJsonTarget, writeJson } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { openAgent } from '../open-agent.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { SeededRandom, shuffle } from '../seeded-random.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { renderTable } from '../text-table.js';
import { DISPATCH_OPTIONS } from './dispatch-options.js';

/** What one slice of 2,048 moves may cost the JavaScript thread, median. */
const BOUND_MOVES = 2048;
const BOUND_US = 60;

/** First slices run cold code. */
const WARM_UP_ROUNDS = 30;
/** Small pages: the cost of handing a slice over does not depend on its bytes. */
const PAGE_SHAPE = { tokensPerBlock: 32, kvHeads: 1, headDim: 32, dtype: 'bfloat16' } as const;

interface DispatchRow {
  readonly moves: number;
  readonly descriptors: number;
  readonly pairs: number;
  readonly fragments: number;
  readonly agent: string;
  /** Planning and handing over one slice, on the JavaScript thread. */
  readonly jsThreadUs: Percentiles;
  readonly planUs: Percentiles;
  readonly submitUs: Percentiles;
  /** From the return of `submit` to the native thread's first post. */
  readonly nativeBeforePostUs: Percentiles;
  readonly samples: readonly {
    readonly planUs: number;
    readonly submitUs: number;
    readonly nativeBeforePostUs: number;
  }[];
}

/** `kv-transceiver bench dispatch`. @returns the exit code */
export async function dispatchCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(DISPATCH_OPTIONS, args);
  checkJsonTarget(options.json);
  const tooFew = options.moves.find((moves) => moves % options.layers !== 0);
  if (tooFew !== undefined) {
    throw new UsageError(`--moves: ${tooFew} does not divide by the ${options.layers} layers of a block (--layers)`);
  }
  await requireAgent('--agent', options.agent);
  const startedAt = new Date().toISOString();
  const rows = await measureRows(options);
  const checks = rows
    .filter((row) => row.moves === BOUND_MOVES)
    .map((row): Check => {
      const value = row.jsThreadUs.p50;
      const subject = String(row.moves);
      return {
        name: 'jsThreadUs',
        subject,
        met: value <= BOUND_US,
        judged: options.judge,
        value,
        bound: BOUND_US,
        relation: '<=',
      };
    });
  const output: BenchOutput<DispatchRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'dispatch',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: options,
    machine: describeMachine(await nixlFacts()),
    results: rows,
    ratios: {},
    checks,
    interrupted: false,
  };
  const out = options.json === '-' ? process.stderr : process.stdout;
  out.write(`${dispatchTable(rows)}\n`);
  for (const check of checks)
    out.write(
      `${check.met ? 'met' : 'NOT MET'}  JS thread, ${check.subject} moves: ${check.value.toFixed(1)} us <= ${check.bound} us\n`,
    );
  writeJson(options.json, output);
  return checks.some((check) => check.judged && !check.met) ? 1 : 0;
}

/** Two agents of this process: the receiving one only lends its memory. */
async function measureRows(options: OptionValues<typeof DISPATCH_OPTIONS>): Promise<readonly DispatchRow[]> {
  const blocks = Math.max(...options.moves) / options.layers;
  const { table, sizeBytes } = buildPageTable({
    groups: [
      {
        kind: 'attention',
        windowSize: null,
        tokensPerBlock: PAGE_SHAPE.tokensPerBlock,
        layers: Array.from({ length: options.layers }, (_, layer) => layer),
        slotCount: blocks,
      },
    ],
    ...PAGE_SHAPE,
    poolLayout: 'per-layer',
    blockLayout: 'HND',
  });
  const [sender, receiver] = [
    await openAgent(options.agent, null, 'dispatch-sender'),
    await openAgent(options.agent, null, 'dispatch-receiver'),
  ];
  try {
    const local = rebasePageTable(table, (await sender.agent.allocatePool({ sizeBytes })).base);
    const remote = rebasePageTable(table, (await receiver.agent.allocatePool({ sizeBytes })).base);
    const peer = await sender.agent.addPeer(await receiver.agent.metadata(), 'dispatch-receiver');
    const mapping = mapPeer(local, remote);
    const fragments = mapping.groups.map((group) =>
      sender.agent.prepareFragments(peer, local, remote, group.fragments),
    );
    const clock = new SystemClock();
    const settled = new CompletionWaiter();
    sender.agent.onCompletions((batch) => settled.accept(batch));

    let submission = 0;
    const rows: DispatchRow[] = [];
    for (const moves of options.moves) {
      const pairs = moves / options.layers;
      const samples: DispatchRow['samples'][number][] = [];
      for (let round = -WARM_UP_ROUNDS; round < options.rounds; round++) {
        const [source, destination] = [
          randomRun(blocks, pairs, 2 * submission),
          randomRun(blocks, pairs, 2 * submission + 1),
        ];
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
            fragments: fragments[group.group] as (typeof fragments)[number],
            slotPairs: group.slotPairs,
          })),
          after: null,
        });
        const submittedMs = clock.now();
        const completion = await done;
        if (completion.status !== 'transferred') throw completion.error ?? new Error(`slice ${completion.status}`);
        if (round < 0) continue;
        samples.push({
          planUs: (plannedMs - startMs) * 1e3,
          submitUs: (submittedMs - plannedMs) * 1e3,
          nativeBeforePostUs: Math.max(0, ((completion.postedAtMs ?? submittedMs) - submittedMs) * 1e3),
        });
      }
      rows.push(toRow(moves, pairs, options.layers, options.agent, samples));
    }
    return rows;
  } finally {
    await sender.agent.close(2000);
    await receiver.agent.close(2000);
  }
}

function toRow(
  moves: number,
  pairs: number,
  fragments: number,
  agent: string,
  samples: DispatchRow['samples'],
): DispatchRow {
  const spread = (pick: (sample: DispatchRow['samples'][number]) => number): Percentiles =>
    percentilesOf(samples.map(pick)) as Percentiles;
  return {
    moves,
    descriptors: moves,
    pairs,
    fragments,
    agent,
    jsThreadUs: spread((sample) => sample.planUs + sample.submitUs),
    planUs: spread((sample) => sample.planUs),
    submitUs: spread((sample) => sample.submitUs),
    nativeBeforePostUs: spread((sample) => sample.nativeBeforePostUs),
    samples,
  };
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

function dispatchTable(rows: readonly DispatchRow[]): string {
  return renderTable(
    ['moves', 'blocks', 'JS thread p50 us', 'p99', 'plan p50', 'submit p50', 'native before post p50', 'p99'],
    rows.map((row) => [
      String(row.moves),
      String(row.pairs),
      ...[
        row.jsThreadUs.p50,
        row.jsThreadUs.p99,
        row.planUs.p50,
        row.submitUs.p50,
        row.nativeBeforePostUs.p50,
        row.nativeBeforePostUs.p99,
      ].map((us) => us.toFixed(1)),
    ]),
  );
}
