import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { readCurveKeyFile } from '../../../src/wire/curve-key-file.js';
import { runCli } from '../../support/cli.js';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'keygen-'));
});
afterAll(() => rm(folder, { recursive: true }));

it('writes a pair that only its owner can read, prints the public key and never the secret', async () => {
  const out = join(folder, 'new');
  const { code, stdout, stderr } = await runCli(['keygen', '--out', out, '--name', 'rank-0']);
  expect([code, stderr]).toEqual([0, '']);
  const secretFile = join(out, 'rank-0.key_secret');
  const { publicKey, secretKey } = await readCurveKeyFile(secretFile);
  expect((await stat(secretFile)).mode & 0o777).toBe(0o600);
  expect((await stat(join(out, 'rank-0.key'))).mode & 0o777).toBe(0o644);
  expect(await readFile(join(out, 'rank-0.key'), 'utf8')).not.toContain(secretKey);
  expect(stdout).toMatch(/^public key {2}/);
  expect(stdout).toContain(publicKey);
  expect(stdout).toContain(`secretKeyFile: ${JSON.stringify(secretFile)}`);
  expect(stdout).not.toContain(secretKey);
});

it('replaces a key only when told to', async () => {
  const args = ['keygen', '--out', folder, '--name', 'kept'];
  const secretFile = join(folder, 'kept.key_secret');
  await writeFile(secretFile, 'precious');
  const refused = await runCli(args);
  expect([refused.code, refused.stdout]).toEqual([2, '']);
  expect(refused.stderr).toBe(
    `kv-transceiver: ${secretFile} is there already; choose another --name, or --force to replace it\n`,
  );
  expect(await readFile(secretFile, 'utf8')).toBe('precious');
  expect((await runCli([...args, '--force'])).code).toBe(0);
  expect((await stat(secretFile)).mode & 0o777).toBe(0o600);
  expect((await readCurveKeyFile(secretFile)).publicKey).toHaveLength(40);
});

it.each([
  ['--name', '../elsewhere', "--name: '../elsewhere' is not a name"],
  ['--name', '', '--name: '],
  ['--out', '/proc/kv-transceiver', '--out: cannot write'],
  ['--out', '/dev/null', '--out: cannot write'],
])('%s %j is refused', async (option, typed, text) => {
  const { code, stdout, stderr } = await runCli(['keygen', option, typed]);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toContain(text);
});
