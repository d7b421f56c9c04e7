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
  if (reports.some(({ step }) => step !== first.step)) {
    const steps = reports.map(({ step }) => step);
    return new ProtocolError(`the ranks of this instance are at different steps: ${perRank(steps)}; restart them all`, {
      details: { steps },
    });
  }
  for (const [field, name] of FIELDS) {
    if (reports.every(({ check }) => check[field] === first.check[field])) continue;
    const values = reports.map(({ check }) => check[field]);
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
