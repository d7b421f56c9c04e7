import { PACKAGE_VERSION } from '../../../package-version.js';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { nixlFacts, requireAgent } from '../agent-availability.js';
import { checkLine, endBench } from '../bench-end.js';
import { checkJsonTarget } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { renderTable } from '../text-table.js';
import { DISPATCH_OPTIONS } from './dispatch-options.js';
import { type DispatchRow, type DispatchShape, measureShape } from './dispatch-rows.js';
import { measureObservers, type ObserveFigures, type ObserveRow } from './observe-rows.js';

/** What one slice of 2,048 moves may cost the JavaScript thread, median. */
const BOUND_MOVES = 2048;
const BOUND_US = 60;
/** What planning one slice of 2,048 blocks may cost, median, whatever the block sizes. */
const BOUND_BLOCKS = 2048;
const BOUND_PLAN_US = 100;

/** What hooks that nobody listens to may cost of a slice: less than can be measured on a slice. */
const BOUND_OFF_SHARE = 0.01;

/** A model with many layers, and block sizes of which one is four of the other: the largest slices there are. */
const DEEP_LAYERS = 64;
const DEEP_HEAD_DIM = 4;
const [SMALL_BLOCK, LARGE_BLOCK] = [16, 64];
const DEEP_PAIRINGS = [
  [SMALL_BLOCK, SMALL_BLOCK],
  [SMALL_BLOCK, LARGE_BLOCK],
  [LARGE_BLOCK, SMALL_BLOCK],
] as const;

/** `kv-transceiver bench dispatch`. @returns the exit code */
export async function dispatchCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(DISPATCH_OPTIONS, args);
  checkJsonTarget(options.json);
  const tooFew = options.moves.find((moves) => moves % options.layers !== 0);
  if (tooFew !== undefined) {
    throw new UsageError(`--moves: ${tooFew} does not divide by the ${options.layers} layers of a block (--layers)`);
  }
  const odd = options.blocks.find((blocks) => blocks % (LARGE_BLOCK / SMALL_BLOCK) !== 0);
  if (odd !== undefined) throw new UsageError(`--blocks: ${odd} is no multiple of ${LARGE_BLOCK / SMALL_BLOCK}`);
  await requireAgent('--agent', options.agent);
  const startedAt = new Date().toISOString();
  const plain: DispatchShape = {
    layers: options.layers,
    headDim: 32,
    senderTokensPerBlock: 32,
    receiverTokensPerBlock: 32,
    blocks: options.moves.map((moves) => moves / options.layers),
  };
  const plainRows = await measureShape(plain, options.agent, options.rounds);
  const deepRows: DispatchRow[] = [];
  for (const [senderTokensPerBlock, receiverTokensPerBlock] of DEEP_PAIRINGS) {
    const deep = { layers: DEEP_LAYERS, headDim: DEEP_HEAD_DIM, blocks: options.blocks };
    deepRows.push(
      ...(await measureShape({ ...deep, senderTokensPerBlock, receiverTokensPerBlock }, options.agent, options.rounds)),
    );
  }
  const rows = [...plainRows, ...deepRows];
  const observed = await measureObservers(options.rounds);
  const judged = options.judge;
  const checks = [
    ...plainRows
      .filter((row) => row.moves === BOUND_MOVES)
      .map((row) => checkOf('jsThreadUs', String(row.moves), row.jsThreadUs.p50, BOUND_US, judged)),
    ...deepRows
      .filter((row) => row.moves === BOUND_BLOCKS * DEEP_LAYERS)
      .map((row) => checkOf('planUs', `${row.moves} ${blockSizes(row)}`, row.planUs.p50, BOUND_PLAN_US, judged)),
    checkOf('observeOffShare', 'a slice', observed.offShare, BOUND_OFF_SHARE, judged),
  ];
  const output: BenchOutput<DispatchRow | ObserveRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'dispatch',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: options,
    machine: describeMachine(await nixlFacts()),
    results: [...rows, ...observed.rows],
    ratios: observeRatios(observed),
    checks,
    interrupted: false,
  };
  const lines = checks.map((check) => checkLine(check, boundText(check)));
  return endBench(output, [dispatchTable(rows), '', observeTable(observed), ...lines], options);
}

function checkOf(name: string, subject: string, value: number, bound: number, judged: boolean): Check {
  return { name, subject, met: value <= bound, judged, value, bound, relation: '<=' };
}

function boundText({ name, subject, value, bound }: Check): string {
  if (name === 'observeOffShare') return `${name}, ${subject}: ${percent(value)} <= ${percent(bound)}`;
  return `${name}, ${subject} moves: ${value.toFixed(1)} us <= ${bound} us`;
}

function percent(share: number): string {
  return `${(100 * share).toFixed(2)} %`;
}

/** Medians and allocation of each variant, in parts of what nothing observing costs. */
function observeRatios({ rows }: ObserveFigures): BenchOutput<never>['ratios'] {
  const off = rows.find(({ variant }) => variant === 'off');
  const ratio = (pick: (row: ObserveRow) => number): Record<string, number> =>
    Object.fromEntries(rows.map((row) => [row.variant, off === undefined ? Number.NaN : pick(row) / pick(off)]));
  return { observeTime: ratio((row) => row.sliceUs.p50), observeBytes: ratio((row) => row.sliceBytes) };
}

function observeTable(observed: ObserveFigures): string {
  const ratios = observeRatios(observed);
  const table = renderTable(
    ['observed by', 'JS of a slice p50 us', 'p99', 'x off', 'heap bytes/slice', 'x off'],
    observed.rows.map(({ variant, sliceUs, sliceBytes }) => [
      variant,
      sliceUs.p50.toFixed(1),
      sliceUs.p99.toFixed(1),
      (ratios['observeTime']?.[variant] ?? Number.NaN).toFixed(2),
      sliceBytes.toFixed(0),
      (ratios['observeBytes']?.[variant] ?? Number.NaN).toFixed(2),
    ]),
  );
  return `${table}\na hook that nobody listens to: ${observed.hookNs.toFixed(2)} ns`;
}

function blockSizes(row: DispatchRow): string {
  return `${row.senderTokensPerBlock}->${row.receiverTokensPerBlock}`;
}

function dispatchTable(rows: readonly DispatchRow[]): string {
  return renderTable(
    [
      'moves',
      'pairs',
      'layers',
      'block',
      'JS thread p50 us',
      'p99',
      'plan p50',
      'submit p50',
      'native before post p50',
      'p99',
    ],
    rows.map((row) => [
      String(row.moves),
      String(row.pairs),
      String(row.layers),
      blockSizes(row),
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
