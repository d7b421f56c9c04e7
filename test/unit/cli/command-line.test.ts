import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { Cli, type CliResult, isAlive, runCli } from '../../support/cli.js';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { readonly version: string };

it.each(['--version', '-V', 'version'])('%s prints the version', async (word) => {
  expect(await runCli([word])).toEqual({ code: 0, stdout: `${version}\n`, stderr: '' });
});

it.each(['/proc/x', '/dev/null/x'])('--json %s is refused before anything runs', async (file) => {
  const { code, stdout, stderr } = await runCli(['bench', 'ttft', '--quick', '--json', file]);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(/^kv-transceiver: --json: .*\n$/);
});

it.each(['1e-30', '0.0009', '1e7', '1e400'])('--link-gbps %s is refused before anything runs', async (speed) => {
  expect(await runCli(['bench', 'ttft', '--quick', '--link-gbps', speed])).toEqual({
    code: 2,
    stdout: '',
    stderr: `kv-transceiver: --link-gbps: '${speed}' is not a number from 0.001 to 1000000\n`,
  });
});

it('the remedy for a missing NIXL is said once', () => {
  const { status, stderr } = spawnSync(
    process.execPath,
    [join(ROOT, 'dist/cli/main.js'), 'bench', 'ttft', '--quick', '--agent', 'nixl'],
    { encoding: 'utf8', env: { ...process.env, KV_TRANSCEIVER_NIXL_LIB: '/nowhere/libnixl_capi.so' } },
  );
  expect(status).toBe(2);
  expect(stderr.match(/npm run nixl|set KV_TRANSCEIVER_NIXL_LIB/g)).toEqual([
    'npm run nixl',
    'set KV_TRANSCEIVER_NIXL_LIB',
  ]);
  expect(stderr).toMatch(/, or use the host agent\n$/);
});

describe('doctor without an addon', () => {
  it.each([false, true])('says what it can, and the remedy (json: %s)', (json) => {
    const folder = mkdtempSync(join(tmpdir(), 'doctor-'));
    try {
      for (const part of ['dist', 'package.json', 'binding.gyp'])
        cpSync(join(ROOT, part), join(folder, part), { recursive: true });
      symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
      const args = [join(folder, 'dist/cli/main.js'), 'doctor', ...(json ? ['--json'] : [])];
      const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
      expect([status, stderr]).toEqual([1, '']);
      for (const part of [process.version, `linux-${process.arch}`, 'npm run build']) expect(stdout).toContain(part);
      if (json) expect(JSON.parse(stdout)).toMatchObject({ addon: null, nixlSearch: { packageTree: null } });
      else expect(stdout).toMatch(/^no {3}nixl agent {2}not known without the addon; .*npm run nixl/m);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

describe('a reader that goes away', () => {
  /** Closes what the command prints to once it measures; both of its servers must be gone when it is. */
  async function withReaderGone(args: readonly string[], closed: readonly ('stdout' | 'stderr')[]): Promise<CliResult> {
    const cli = new Cli(['bench', 'ttft', '--quick', '--model', 'gemma-3-1b', ...args]);
    await cli.untilStderr(/^1\/\d+ /m);
    const servers = cli.children().map(({ pid }) => pid);
    expect(servers).toHaveLength(2);
    for (const stream of closed) cli.process[stream]?.destroy();
    const result = await cli.result();
    expect(servers.filter(isAlive)).toEqual([]);
    return result;
  }

  it('ends the run without a word', async () => {
    const { code, stderr } = await withReaderGone([], ['stdout']);
    expect(code).toBe(141);
    expect(stderr).not.toMatch(/EPIPE|^\s+at |Error/m);
  });

  it('stops a long run when it next says something', async () => {
    expect((await withReaderGone(['--requests', '500'], ['stdout', 'stderr'])).code).toBe(141);
  });
});
