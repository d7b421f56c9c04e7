import type { Check, TtftRow } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import { rowOf, subjectOf } from './rows.js';

/** How far the TTFT may exceed that of a transfer that only sends the last slice. */
const TTFT_OVER_IDEAL = 1.1;

/**
 * What the early prefix is built for: with most of the prompt reused, nothing but the last slice is left when the prefill ends. They decide the
 * exit code only when `judged`.
 * Where the link needs longer for the prefix, and the slices before the last, than the rest of the prompt takes to compute, the last slice
 * waits for the link, which no schedule can hide: that is all that is said then (`earlyPrefixLinkTime`), and it is not met.
 */
export function earlyPrefixChecks(rows: readonly TtftRow[], judged: boolean, tailBound: number): readonly Check[] {
  return rows.flatMap((row) => {
    if (row.variant !== 'pipelined-early-prefix' || row.ttftMs === null || row.prefixHit === 0) return [];
    const { sliding, hybrid } = presetNamed(row.model);
    if (row.promptTokens === null || sliding !== null || hybrid !== null) return [];
    const wholePromptMs = rowOf(rows, 'monolithic', row)?.transferMs?.p50;
    if (row.prefillMs === null || wholePromptMs === undefined) return [];
    const lastMs = row.lastSliceMs?.p50 ?? 0;
    const linkMs = Math.max(wholePromptMs * row.prefixHit, wholePromptMs - lastMs);
    const subject = subjectOf(row);
    const check = (name: string, value: number, bound: number): Check => ({
      name,
      subject,
      met: value <= bound,
      judged,
      value,
      bound,
      relation: '<=',
    });
    const linkTime = check('earlyPrefixLinkTime', linkMs / row.prefillMs.p50, 1);
    if (!linkTime.met) return [linkTime];
    const ideal = rowOf(rows, 'ideal', row);
    // Of a small last slice most is what any transfer has to pay, and the ideal sends nothing but that slice.
    const lastSliceMs = Math.max(lastMs, ideal?.exposedTailMs?.p50 ?? 0);
    return [
      linkTime,
      ...(row.exposedTailMs !== null && lastSliceMs > 0
        ? [check('earlyPrefixTailOverLastSlice', row.exposedTailMs.p50 / lastSliceMs, tailBound)]
        : []),
      ...(ideal === undefined || ideal.ttftMs === null
        ? []
        : [check('earlyPrefixOverIdeal', row.ttftMs.p50 / ideal.ttftMs.p50, TTFT_OVER_IDEAL)]),
    ];
  });
}
