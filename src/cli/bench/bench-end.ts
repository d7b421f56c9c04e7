import { writeJson } from './json-file.js';
import type { BenchOutput, Check } from './output-contract.js';
import { writeReport } from './report/write-report.js';

/** Where a bench's figures go besides the terminal. */
export interface EndOptions {
  readonly json: string | null;
  readonly report?: string | null;
}

/** A check as every bench prints it. @param text what was compared, in the unit of its name */
export function checkLine({ met }: Check, text: string): string {
  return `${met ? 'met    ' : 'NOT MET'}  ${text}`;
}

/** @param digits after the point of the value */
export function checkText({ name, subject, value, relation, bound }: Check, digits: number): string {
  return `${name} ${subject}: ${value.toFixed(digits)} ${relation} ${bound}`;
}

/** Where a bench writes its lines: standard output, unless the JSON goes there. */
export function sayTo(json: string | null): (line: string) => void {
  return (line) => void (json === '-' ? process.stderr : process.stdout).write(`${line}\n`);
}

/**
 * Ends a run: its lines, then its JSON and page, so that a full disk does not take the table along, then whether it was all of it.
 * @param lines of the table and the checks; left out when nothing was measured
 * @param broken what broke the run off, unless somebody interrupted it: thrown when everything else is written
 * @returns the exit code: 130 for an interrupted run, 1 for a judged check that failed, else 0
 */
export function endBench(
  output: BenchOutput<object>,
  lines: readonly string[],
  { json, report = null }: EndOptions,
  broken: Error | null = null,
): number {
  const say = sayTo(json);
  const hasResults = output.results.length > 0;
  if (hasResults) for (const line of lines) say(line);
  writeJson(json, output);
  if (report !== null && hasResults) say(`report: ${writeReport(report, output).page}`);
  if (broken !== null) throw broken;
  if (output.interrupted) {
    say(
      hasResults
        ? 'interrupted: the figures above are what was measured until then'
        : 'interrupted before anything was measured',
    );
    return 130;
  }
  return output.checks.some(({ judged, met }) => judged && !met) ? 1 : 0;
}
