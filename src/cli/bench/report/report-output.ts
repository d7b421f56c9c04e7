import type { BenchOutput, TtftRow, TtftSample } from '../output-contract.js';
import type { TraceRow } from '../trace/trace-row.js';

/** What a report is made of: a bench's output, also one that was read from a file. */
export type AnyOutput = BenchOutput<object>;

/** Rows of requests, as `ttft` and `trace` have them. Older files have no timelines. */
export function requestRows(output: AnyOutput): readonly TtftRow[] {
  if (output.bench !== 'ttft' && output.bench !== 'trace') return [];
  return output.results as readonly TtftRow[];
}

export function traceRows(output: AnyOutput): readonly TraceRow[] {
  return output.bench === 'trace' ? (output.results as readonly TraceRow[]) : [];
}

export function completedOf(row: Pick<TtftRow, 'samples'>): readonly TtftSample[] {
  return row.samples.filter(({ outcome }) => outcome === 'completed');
}

/** Rows about the same prompts, in the order of the output. */
export function bySubject(rows: readonly TtftRow[]): ReadonlyMap<string, readonly TtftRow[]> {
  const subjects = new Map<string, TtftRow[]>();
  for (const row of rows) {
    const name = subjectName(row);
    subjects.set(name, [...(subjects.get(name) ?? []), row]);
  }
  return subjects;
}

/** `8192 tokens, 50 % cached`: at the context server, before the request. */
export function subjectName({ promptTokens, prefixHit }: Pick<TtftRow, 'promptTokens' | 'prefixHit'>): string {
  const prompt = promptTokens === null ? 'the trace' : `${promptTokens} tokens`;
  return prefixHit === 0 ? prompt : `${prompt}, ${Number((100 * prefixHit).toFixed(1))} % cached`;
}
