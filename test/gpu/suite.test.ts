import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { capabilities } from '../../src/agent/native.js';

const FOLDER = dirname(fileURLToPath(import.meta.url));
const LIMIT_MS = 900_000;

const { cuda } = await capabilities();
if (!cuda.available) {
  const why = `NOTHING IS TESTED ON A GPU (test/gpu): ${cuda.reason}`;
  if ((process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('cuda')) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
}
const skipped = cuda.available ? '' : ` (SKIPPED: ${cuda.reason})`;

/** They want a process of their own each: what a GPU test does to the device must not outlive its file. */
it.skipIf(!cuda.available)(`test/gpu passes on this machine's GPU${skipped}`, { timeout: LIMIT_MS }, async () => {
  const files = readdirSync(FOLDER).filter((name) => name.endsWith('.test.mjs'));
  expect(files.length).toBeGreaterThan(0);
  const args = ['--expose-gc', '--test', '--test-concurrency=1', ...files.map((name) => join(FOLDER, name))];
  const tests = spawn(process.execPath, args, { stdio: 'inherit' });
  const exitCode = await new Promise((resolve, reject) => {
    tests.once('error', reject);
    tests.once('exit', (code, signal) => resolve(code ?? signal));
  });
  expect(exitCode).toBe(0);
});
