import { ProtocolError } from '../errors.js';
import type { RankReport, StepCheck } from './rank-report.js';

const FIELDS: readonly (readonly [keyof StepCheck, string])[] = [
  ['prompts', 'prompts in the last step'],
  ['promptTokens', 'prompt tokens in the last step'],
  ['decodes', 'decodes in the last step'],
  ['receives', 'receives in the last step'],
  ['freeSlots', 'free pages'],
  ['live', 'live requests'],
  ['planHash', 'schedule so far (hash)'],
];

/** Null when all ranks report the same step after the same schedule; else the error that says which ranks differ, and in what. */
export function disagreement(reports: readonly RankReport[]): ProtocolError | null {
  const first = reports[0] as RankReport;
  const steps = reports.map((report) => report.step);
  if (steps.some((step) => step !== first.step)) {
    return new ProtocolError(`the ranks of this instance are at different steps: ${perRank(steps)}; restart them all`, {
      details: { steps },
    });
  }
  for (const [field, name] of FIELDS) {
    const values = reports.map((report) => report.check[field]);
    if (values.every((value) => value === values[0])) continue;
    return new ProtocolError(
      `the ranks of this instance ran different schedules before step ${first.step}, ${name}: ${perRank(values)}; give every rank the same limits, pools and requests and restart them all`,
      { details: { step: first.step, field, values } },
    );
  }
  return null;
}

function perRank(values: readonly number[]): string {
  return values.map((value, rank) => `rank ${rank} ${value}`).join(', ');
}
