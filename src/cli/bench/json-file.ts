import { accessSync, constants, statSync, writeFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { UsageError } from '../usage-error.js';

/** @throws UsageError when the file could not be written at the end of a long run */
export function checkJsonTarget(file: string | null): void {
  if (file === null || file === '-') return;
  const folder = dirname(resolve(file));
  try {
    accessSync(folder, constants.W_OK);
  } catch {
    throw new UsageError(`--json: the folder ${folder} does not exist or cannot be written; create it first`);
  }
  if (statSync(resolve(file), { throwIfNoEntry: false })?.isDirectory() === true) {
    throw new UsageError(`--json: ${file} is a folder; name a file in it`);
  }
}

export function writeJson(file: string | null, output: unknown): void {
  if (file === null) return;
  const text = `${JSON.stringify(output, null, 2)}\n`;
  if (file === '-') process.stdout.write(text);
  else writeFileSync(file, text);
}
