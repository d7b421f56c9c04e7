import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { checkJsonTarget, writeJson } from '../../../src/cli/bench/json-file.js';
import { ReportWriteError } from '../../../src/cli/bench/report-write-error.js';
import { UsageError } from '../../../src/cli/usage-error.js';

let folder = '';
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'json-file-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

it('refuses a file that its folder does not take', () => {
  expect(() => checkJsonTarget('/proc/x')).toThrow(UsageError);
  expect(() => checkJsonTarget('/proc/x')).toThrow(/^--json: \/proc\/x cannot be written \(E[A-Z]+\); name a file/);
});

it('refuses a folder', () => {
  expect(() => checkJsonTarget(folder)).toThrow(/is a folder; name a file in it$/);
});

it('leaves no file behind, and one that was there as it was', () => {
  const fresh = join(folder, 'fresh.json');
  checkJsonTarget(fresh);
  expect(existsSync(fresh)).toBe(false);
  const old = join(folder, 'old.json');
  writeFileSync(old, 'kept');
  checkJsonTarget(old);
  expect(readFileSync(old, 'utf8')).toBe('kept');
});

it('turns a late error into one line that names the option', () => {
  expect(() => writeJson('/dev/full', { a: 1 })).toThrow(ReportWriteError);
  expect(() => writeJson('/dev/full', { a: 1 })).toThrow(
    '--json: /dev/full could not be written (ENOSPC); --json - prints the report',
  );
});
