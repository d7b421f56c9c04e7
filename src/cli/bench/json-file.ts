import { accessSync, closeSync, constants, openSync, statSync, unlinkSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { UsageError } from '../usage-error.js';
import { ReportWriteError } from './report-write-error.js';

/** @throws UsageError when the file could not be written at the end of a long run; leaves no file behind */
export function checkJsonTarget(file: string | null): void {
  if (file === null || file === '-') return;
  const folder = dirname(resolve(file));
  try {
    accessSync(folder, constants.X_OK);
  } catch {
    throw new UsageError(`--json: the folder ${folder} does not exist or cannot be entered; create it first`);
  }
  try {
    const there = statSync(file, { throwIfNoEntry: false });
    if (there?.isDirectory() === true) throw new UsageError(`--json: ${file} is a folder; name a file in it`);
    // Opening a pipe would wait for its reader.
    if (there !== undefined && !there.isFile()) accessSync(file, constants.W_OK);
    else tryToOpen(file, there !== undefined);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`--json: ${file} cannot be written (${codeOf(error)}); name a file that can be`);
  }
}

/**
 * Call it when everything else is printed: a full disk must not take the table with it.
 * @throws ReportWriteError
 */
export function writeJson(file: string | null, output: unknown): void {
  if (file === null) return;
  const text = `${JSON.stringify(output, null, 2)}\n`;
  if (file === '-') {
    process.stdout.write(text);
    return;
  }
  try {
    writeFileSync(file, text);
  } catch (error) {
    throw new ReportWriteError(`--json: ${file} could not be written (${codeOf(error)}); --json - prints the report`);
  }
}

/** Only an attempt shows whether a file can be made: a folder such as /proc takes none, whatever its permissions say. */
function tryToOpen(file: string, isThere: boolean): void {
  closeSync(openSync(file, isThere ? 'r+' : 'wx'));
  if (!isThere) unlinkSync(file);
}

function codeOf(error: unknown): string {
  const { code } = error as NodeJS.ErrnoException;
  return code ?? String(error);
}
