import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { SystemClock } from '../../../clock.js';
import { PACKAGE_VERSION } from '../../../package-version.js';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { checkJsonTarget, writeJson } from '../json-file.js';
import { commitOfCheckout, describeMachine } from '../machine-info.js';
import { type BenchOutput, type Check, OUTPUT_SCHEMA } from '../output-contract.js';
import { type Percentiles, percentilesOf } from '../statistics.js';
import { renderTable } from '../text-table.js';
import { PromptTail } from './prompt-tail.js';
import { SCALE_OPTIONS } from './scale-options.js';

/** The same chunk may cost this much more in the longest prompt than in the shortest. */
const BOUND_RATIO = 1.2;
const WARM_UP_ROUNDS = 50;
/** Few enough that no garbage collection happens while they are counted; the median of some tries drops those that were disturbed. */
const COUNTED_SLICES = 8;
const COUNTED_TRIES = 15;

interface ScaleRow {
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
  const [shortest, longest] = [lengths[0] ?? 0, lengths.at(-1) ?? 0];
  if (shortest < options.chunkTokens) {
    throw new UsageError(
      `--prompt-tokens: ${shortest} is shorter than the chunk of ${options.chunkTokens} (--chunk-tokens)`,
    );
  }
  const startedAt = new Date().toISOString();
  const { chunkTokens, layers, windowTokens } = options;
  const tails = lengths.map((promptTokens) => new PromptTail({ promptTokens, chunkTokens, layers, windowTokens }));
  const samples = measure(tails, options.rounds);
  const rows = tails.map((tail, index): ScaleRow => {
    const { stats } = tail.planLastSlice();
    return {
      promptTokens: lengths[index] ?? 0,
      chunkTokens,
      pairs: stats.pairs,
      fragments: stats.fragments,
      sliceUs: percentilesOf(samples[index] ?? []) as Percentiles,
      allocatedBytes: allocatedBytes(tail),
      samples: samples[index] ?? [],
    };
  });
  const checks = checksOf(rows, options.judge);
  const output: BenchOutput<ScaleRow> = {
    schema: OUTPUT_SCHEMA,
    bench: 'scale',
    version: PACKAGE_VERSION,
    commit: commitOfCheckout(),
    startedAt,
    settings: options,
    machine: describeMachine(null),
    results: rows,
    ratios: Object.fromEntries(checks.map(({ name, subject, value }) => [name, { [subject]: value }])),
    checks,
    interrupted: false,
  };
  const out = options.json === '-' ? process.stderr : process.stdout;
  out.write(`${scaleTable(rows)}\n`);
  for (const check of checks) {
    const text = `${check.name}, ${longest} against ${shortest} tokens: ${check.value.toFixed(2)} <= ${check.bound}`;
    out.write(`${check.met ? 'met' : 'NOT MET'}  ${text}\n`);
  }
  writeJson(options.json, output);
  return checks.some((check) => check.judged && !check.met) ? 1 : 0;
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

function allocatedBytes(tail: PromptTail): number {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = (): number => {
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  const tries = Array.from({ length: COUNTED_TRIES }, () => {
    collect();
    const before = used();
    for (let i = 0; i < COUNTED_SLICES; i++) tail.planLastSlice();
    return (used() - before) / COUNTED_SLICES;
  });
  return Math.round(percentilesOf(tries)?.p50 ?? 0);
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
    subject: String(longest.promptTokens),
    met: value <= BOUND_RATIO,
    judged,
    value,
    bound: BOUND_RATIO,
    relation: '<=',
  }));
}

function scaleTable(rows: readonly ScaleRow[]): string {
  return renderTable(
    ['prompt', 'chunk', 'pairs', 'fragments', 'slice p50 us', 'p99', 'allocated bytes'],
    rows.map(({ promptTokens, chunkTokens, pairs, fragments, sliceUs, allocatedBytes: bytes }) => [
      String(promptTokens),
      ...[chunkTokens, pairs, fragments].map(String),
      sliceUs.p50.toFixed(1),
      sliceUs.p99.toFixed(1),
      String(bytes),
    ]),
  );
}
