import { SystemClock } from '../../../clock.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { checkLine, endBench } from '../bench-end.js';
import { checkJsonTarget } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { renderTable } from '../text-table.js';
import { allocatedBytes } from './allocated-bytes.js';
import { type ManagerName, PromptTail } from './prompt-tail.js';
import { SCALE_OPTIONS } from './scale-options.js';

/** The same chunk may cost this much more in the longest prompt than in the shortest. */
const BOUND_RATIO = 1.2;
const WARM_UP_ROUNDS = 50;
const MANAGERS: readonly ManagerName[] = ['growing', 'reserving'];

interface ScaleRow {
  /** Cache manager. */
  readonly manager: ManagerName;
  readonly promptTokens: number;
  readonly chunkTokens: number;
  readonly pairs: number;
  readonly fragments: number;
  /** Bounds, range query and plan of one slice, on the JavaScript thread. */
  readonly sliceUs: Percentiles;
  /** What one slice allocates, on the heap and in array buffers. */
  readonly allocatedBytes: number;
  readonly samples: readonly number[];
}

/** `kv-transceiver bench scale`. @returns the exit code */
export async function scaleCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(SCALE_OPTIONS, args);
  checkJsonTarget(options.json);
  const lengths = [...options.promptTokens].sort((a, b) => a - b);
  const shortest = lengths[0] ?? 0;
  if (shortest < options.chunkTokens) {
    throw new UsageError(
      `--prompt-tokens: ${shortest} is shorter than the chunk of ${options.chunkTokens} (--chunk-tokens)`,
    );
  }
  const startedAt = new Date().toISOString();
  const { chunkTokens, layers, windowTokens } = options;
  const cases = MANAGERS.flatMap((manager) =>
    lengths.map((promptTokens) => ({
      manager,
      promptTokens,
      tail: new PromptTail({ manager, promptTokens, chunkTokens, layers, windowTokens }),
    })),
  );
  const tails = cases.map(({ tail }) => tail);
  const samples = measure(tails, options.rounds);
  const allocated = allocatedBytes(tails.map((tail) => () => tail.planLastSlice()));
  const rows = cases.map(({ manager, promptTokens, tail }, index): ScaleRow => {
    const { stats } = tail.planLastSlice();
    return {
      manager,
      promptTokens,
      chunkTokens,
      pairs: stats.pairs,
      fragments: stats.fragments,
      sliceUs: percentilesOf(samples[index] ?? []) as Percentiles,
      allocatedBytes: allocated[index] ?? 0,
      samples: samples[index] ?? [],
    };
  });
  const checks = MANAGERS.flatMap((manager) =>
    checksOf(
      rows.filter((row) => row.manager === manager),
      options.judge,
    ),
  );
  const output: BenchOutput<ScaleRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'scale',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: options,
    machine: describeMachine(null),
    results: rows,
    ratios: ratiosOf(checks),
    checks,
    interrupted: false,
  };
  const against = (check: Check): string =>
    `${check.name}, ${check.subject} against ${shortest} tokens: ${check.value.toFixed(2)} <= ${check.bound}`;
  return endBench(output, [scaleTable(rows), ...checks.map((check) => checkLine(check, against(check)))], options);
}

/** Microseconds of each slice. Prompt lengths take turns, so that a slow moment of the machine hits all of them. */
function measure(tails: readonly PromptTail[], rounds: number): readonly number[][] {
  const clock = new SystemClock();
  const samples = tails.map((): number[] => []);
  for (let round = -WARM_UP_ROUNDS; round < rounds; round++) {
    tails.forEach((tail, index) => {
      const startMs = clock.now();
      tail.planLastSlice();
      if (round >= 0) samples[index]?.push((clock.now() - startMs) * 1e3);
    });
  }
  return samples;
}

function checksOf(rows: readonly ScaleRow[], judged: boolean): readonly Check[] {
  const [shortest, longest] = [rows[0], rows.at(-1)];
  if (shortest === undefined || longest === undefined || rows.length < 2) return [];
  return (
    [
      ['sliceUsRatio', longest.sliceUs.p50 / shortest.sliceUs.p50],
      ['allocatedBytesRatio', longest.allocatedBytes / shortest.allocatedBytes],
    ] as const
  ).map(([name, value]) => ({
    name,
    subject: `${longest.promptTokens} ${longest.manager}`,
    met: value <= BOUND_RATIO,
    judged,
    value,
    bound: BOUND_RATIO,
    relation: '<=',
  }));
}

function ratiosOf(checks: readonly Check[]): Record<string, Record<string, number>> {
  const ratios: Record<string, Record<string, number>> = {};
  for (const { name, subject, value } of checks) ratios[name] = { ...ratios[name], [subject]: value };
  return ratios;
}

function scaleTable(rows: readonly ScaleRow[]): string {
  return renderTable(
    ['cache manager', 'prompt', 'chunk', 'pairs', 'fragments', 'slice p50 us', 'p99', 'allocated bytes'],
    rows.map(({ manager, promptTokens, chunkTokens, pairs, fragments, sliceUs, allocatedBytes: bytes }) => [
      manager,
      String(promptTokens),
      ...[chunkTokens, pairs, fragments].map(String),
      sliceUs.p50.toFixed(1),
      sliceUs.p99.toFixed(1),
      String(bytes),
    ]),
  );
}
