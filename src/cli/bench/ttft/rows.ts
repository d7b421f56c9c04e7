import type { TtftRow, TtftSample, TtftVariant } from '../output-contract.js';
import { percentilesOf, quantile, sum } from '../statistics.js';

export interface RowKey {
  readonly variant: TtftVariant;
  readonly promptTokens: number | null;
  readonly prefixHit: number;
}

export interface RowFacts {
  readonly model: string;
  readonly contextShape: string;
  readonly contextRanks: number;
  readonly generationShape: string;
  readonly generationRanks: number;
  readonly chunkTokens: number;
  readonly concurrency: number;
  readonly agent: 'host' | 'nixl';
  readonly path: string;
}

/** Names the prompts a row is about: `8192`, or `8192@0.5` with half of them cached at the context server. */
export function subjectOf(key: Pick<RowKey, 'promptTokens' | 'prefixHit'>): string {
  const prompt = key.promptTokens === null ? 'trace' : String(key.promptTokens);
  return key.prefixHit === 0 ? prompt : `${prompt}@${key.prefixHit}`;
}

/** Chunks and slices of timelines that one row keeps: enough for any picture, and a file that can be opened. */
const MOST_TIMELINE_ENTRIES = 40_000;

/** Samples by row, in the order in which rows first appeared. */
export class SampleTable {
  readonly #rows = new Map<string, { readonly key: RowKey; readonly samples: TtftSample[]; timelineEntries: number }>();

  add(key: RowKey, sample: TtftSample): void {
    const id = `${subjectOf(key)}/${key.variant}`;
    const row = this.#rows.get(id) ?? { key, samples: [], timelineEntries: 0 };
    const { chunks = [], slices = [] } = sample.timeline ?? {};
    row.timelineEntries += chunks.length + slices.length;
    row.samples.push(row.timelineEntries > MOST_TIMELINE_ENTRIES ? { ...sample, timeline: null } : sample);
    this.#rows.set(id, row);
  }

  get size(): number {
    return this.#rows.size;
  }

  /** Variants of one subject stand together, in the order of the first subject's. */
  rows(facts: RowFacts): readonly TtftRow[] {
    const all = [...this.#rows.values()];
    const monolithicTransfer = new Map(
      all
        .filter(({ key }) => key.variant === 'monolithic')
        .map(({ key, samples }) => [subjectOf(key), median(completed(samples).map((sample) => sample.transferMs))]),
    );
    const subjects = [...new Set(all.map(({ key }) => subjectOf(key)))];
    return subjects.flatMap((subject) =>
      all
        .filter(({ key }) => subjectOf(key) === subject)
        .map(({ key, samples }) => toRow(key, samples, facts, monolithicTransfer.get(subject) ?? null)),
    );
  }
}

function completed(samples: readonly TtftSample[]): readonly TtftSample[] {
  return samples.filter((sample) => sample.outcome === 'completed');
}

function median(values: readonly number[]): number | null {
  return percentilesOf(values)?.p50 ?? null;
}

function toRow(
  key: RowKey,
  samples: readonly TtftSample[],
  facts: RowFacts,
  monolithicTransferMs: number | null,
): TtftRow {
  const done = completed(samples);
  const exposedTailMs = percentilesOf(done.map((sample) => sample.exposedTailMs));
  const slices = done.map((sample) => sample.slices).sort((a, b) => a - b);
  return {
    variant: key.variant,
    model: facts.model,
    contextShape: facts.contextShape,
    contextRanks: facts.contextRanks,
    generationShape: facts.generationShape,
    generationRanks: facts.generationRanks,
    promptTokens: key.promptTokens,
    chunkTokens: facts.chunkTokens,
    prefixHit: key.prefixHit,
    concurrency: facts.concurrency,
    agent: facts.agent,
    path: facts.path,
    requests: samples.length,
    failed: samples.filter((sample) => sample.outcome === 'failed').length,
    slices: slices.length === 0 ? 0 : Math.round(quantile(slices, 0.5)),
    ttftMs: percentilesOf(done.map((sample) => sample.ttftMs)),
    prefillMs: percentilesOf(done.map((sample) => sample.prefillMs)),
    transferMs: percentilesOf(done.map((sample) => sample.transferMs)),
    exposedTailMs,
    lastSliceMs: percentilesOf(done.map((sample) => sample.lastSliceMs)),
    hiddenShare:
      exposedTailMs === null || monolithicTransferMs === null || monolithicTransferMs === 0
        ? null
        : 1 - exposedTailMs.p50 / monolithicTransferMs,
    bytesPlanned: sum(samples.map((sample) => sample.bytesPlanned)),
    bytesSent: sum(samples.map((sample) => sample.bytesSent)),
    bytesVerified: sum(samples.map((sample) => sample.bytesVerified)),
    wrongBytes: sum(samples.map((sample) => sample.wrongBytes)),
    samples,
  };
}

/** TTFT medians of one variant over another's, per subject. */
export function ratios(rows: readonly TtftRow[]): Readonly<Record<string, Readonly<Record<string, number>>>> {
  const over = (denominator: TtftVariant): Record<string, number> => {
    const entries = rows.flatMap((row) => {
      if (row.variant !== 'pipelined' || row.ttftMs === null) return [];
      const other = rowOf(rows, denominator, row);
      return other?.ttftMs == null ? [] : [[subjectOf(row), row.ttftMs.p50 / other.ttftMs.p50] as const];
    });
    return Object.fromEntries(entries);
  };
  return { pipelinedOverMonolithic: over('monolithic'), pipelinedOverIdeal: over('ideal') };
}

/** The row of `variant` about the same prompts as `row`. */
export function rowOf(rows: readonly TtftRow[], variant: TtftVariant, row: TtftRow): TtftRow | undefined {
  return rows.find((other) => other.variant === variant && subjectOf(other) === subjectOf(row));
}
