import { accessSync, constants, existsSync, mkdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { UsageError } from '../../usage-error.js';
import { ReportWriteError } from '../report-write-error.js';

/**
 * Makes the folder where it is missing, so that a long run does not end with a report that cannot be written.
 * @throws UsageError naming what is wrong with it
 */
export function checkReportFolder(folder: string | null): void {
  if (folder === null) return;
  try {
    makeFolders(folder);
    if (!statSync(folder).isDirectory()) throw new UsageError(`--report: ${folder} is a file; name a folder`);
    accessSync(folder, constants.W_OK | constants.X_OK);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    const { code } = error as NodeJS.ErrnoException;
    const why = code === 'EEXIST' || code === 'ENOTDIR' ? 'is a file, or lies in one' : `cannot be written (${code})`;
    throw new UsageError(`--report: ${resolve(folder)} ${why}; name another folder`);
  }
}

/** @throws ReportWriteError */
export function writeInto(folder: string, name: string, content: string): string {
  const file = join(folder, name);
  try {
    writeFileSync(file, content);
  } catch (error) {
    throw new ReportWriteError(
      `--report: ${file} could not be written (${(error as NodeJS.ErrnoException).code}); --json - prints the figures`,
    );
  }
  return file;
}

/** One by one: Node's `recursive` tries for ever where a folder takes none and says that it does not exist, as /proc does. */
function makeFolders(folder: string): void {
  const missing: string[] = [];
  for (let at = resolve(folder); !existsSync(at); at = dirname(at)) missing.push(at);
  for (const one of missing.reverse()) mkdirSync(one);
}
