import { readFileSync } from 'node:fs';
import * as read from '../../option-types.js';
import { readOptions, value } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { OUTPUT_SCHEMA } from '../output-contract.js';
import { checkReportFolder } from './report-folder.js';
import type { AnyOutput } from './report-output.js';
import { writeReport } from './write-report.js';

export const REPORT_OPTIONS = {
  from: value('FILE', 'what a bench wrote with --json', read.text),
  report: value('DIR', 'folder for report.html', read.text, 'report'),
} as const;

/** `kv-transceiver bench report`: the page of a run that is over. @returns the exit code */
export async function reportCommand(args: readonly string[]): Promise<number> {
  const { from, report } = readOptions(REPORT_OPTIONS, args);
  if (from === null) throw new UsageError('--from: name the file that a bench wrote with --json');
  const output = readOutput(from);
  checkReportFolder(report);
  process.stdout.write(`report: ${writeReport(report, output).page}\n`);
  return 0;
}

/** @throws UsageError for a file that no bench wrote */
export function readOutput(file: string): AnyOutput {
  const fail = (why: string): never => {
    throw new UsageError(`--from: ${file} ${why}; name a file that a bench wrote with --json`);
  };
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return fail(code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`);
  }
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    return fail('is not JSON');
  }
  if (typeof parsed !== 'object' || parsed === null) return fail('holds no object');
  const { schema, bench, results, ratios, checks, machine, settings } = parsed as Record<string, unknown>;
  if (schema !== OUTPUT_SCHEMA) fail(`has schema ${String(schema)}, this version reads ${OUTPUT_SCHEMA}`);
  const isObject = (one: unknown): boolean => typeof one === 'object' && one !== null;
  if (
    typeof bench !== 'string' ||
    ![results, checks].every(Array.isArray) ||
    ![ratios, machine, settings].every(isObject)
  ) {
    fail('lacks bench, results, ratios, checks, machine or settings');
  }
  return parsed as AnyOutput;
}
