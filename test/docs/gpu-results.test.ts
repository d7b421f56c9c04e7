import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'gpu-results-'));
afterAll(() => rmSync(folder, { recursive: true }));

const run = (command: string, ...args: string[]) => spawnSync(command, args, { cwd: ROOT, encoding: 'utf8' });

describe('the reporter of test/gpu', () => {
  it('tells every test with its outcome, and a file that threw before its first', () => {
    const tests = join(folder, 'some.test.mjs');
    const broken = join(folder, 'broken.test.mjs');
    const out = join(folder, 'tests.json');
    writeFileSync(
      tests,
      `import { test } from 'node:test';
       test('passes', () => console.log('# 3 ms'));
       test('fails', () => { throw new Error('wrong byte'); });
       test('is skipped', { skip: 'needs two GPUs' }, () => {});`,
    );
    writeFileSync(broken, "throw new Error('at load');");
    const reporters = ['--test-reporter=./test/gpu/json-reporter.mjs', `--test-reporter-destination=${out}`];
    expect(run(process.execPath, '--test', ...reporters, tests, broken).status).toBe(1);
    const told = JSON.parse(readFileSync(out, 'utf8'));
    expect(told).toMatchObject({ passed: 1, failed: 2, skipped: 1, notes: ['# 3 ms'] });
    const outcomes = told.tests.map(({ name, outcome, why, error }: Record<string, string>) => [
      name,
      outcome,
      why ?? error,
    ]);
    expect(outcomes).toEqual(
      expect.arrayContaining([
        ['passes', 'passed', undefined],
        ['fails', 'failed', 'wrong byte'],
        ['is skipped', 'skipped', 'needs two GPUs'],
        ['the file as a whole', 'failed', expect.any(String)],
      ]),
    );
  });
});

describe('gpu-test.sh', () => {
  it('lists its runs, each once, and how long all take', () => {
    const { status, stdout } = run('bash', 'scripts/gpu-test.sh', '--list');
    expect(status).toBe(0);
    const names = stdout
      .trim()
      .split('\n')
      .slice(0, -1)
      .map((line) => line.split(/\s+/)[1]);
    expect(names).toEqual(expect.arrayContaining(['native-tests', 'node-tests', 'soak', 'kill']));
    expect(new Set(names).size).toBe(names.length);
    expect(stdout).toMatch(/about \d+ s in all/);
  });

  it.each([
    [[], /usage/],
    [['--nothing'], /unknown option --nothing/],
    [['nowhere', 'nothing'], /'nothing' is neither a part nor a name here; parts: native-tests/],
  ])('refuses %j with exit code 2, and makes no folder', (args, message) => {
    const { status, stderr } = run('bash', 'scripts/gpu-test.sh', ...args);
    expect(status).toBe(2);
    expect(stderr).toMatch(message);
    expect(existsSync(join(ROOT, 'nowhere'))).toBe(false);
  });

  it('gives a tool the path of the test program, and each result and run its commit', () => {
    const tools = join(folder, 'tools');
    mkdirSync(tools);
    // Stands in for the sanitizer: leaves what it was asked to run where the tests would leave their result.
    writeFileSync(
      join(tools, 'compute-sanitizer'),
      `#!${process.execPath}
       const out = process.argv.find((word) => word.startsWith('--gtest_output=')).replace('--gtest_output=json:', '');
       require('node:fs').writeFileSync(out, JSON.stringify({ tests: 11, command: process.argv.slice(2) }));`,
      { mode: 0o755 },
    );
    const results = join(folder, 'results');
    const env = { ...process.env, PATH: `${tools}:${process.env['PATH']}` };
    const { status } = spawnSync('bash', ['scripts/gpu-test.sh', results, 'sanitize'], {
      cwd: ROOT,
      encoding: 'utf8',
      env,
    });
    expect(status).toBe(0);
    const commit = run('git', 'rev-parse', 'HEAD').stdout.trim();
    const readResult = (file: string): Record<string, unknown> =>
      JSON.parse(readFileSync(join(results, file), 'utf8')) as Record<string, unknown>;
    for (const tool of ['memcheck', 'racecheck']) {
      const told = readResult(`sanitize-${tool}.json`);
      expect(told).toMatchObject({ exitCode: 0, tests: 11, settings: { tool } });
      expect(String(told['commit'])).toMatch(new RegExp(`^${commit}`));
      expect(told['command']).toContain(tool);
      expect((told['command'] as string[]).find((word) => word.endsWith('kvt_device_tests'))).toMatch(/^\//);
    }
    const host = readResult('host.json') as { commit: string; runs: { name: string; commit: string }[] };
    expect(host.runs.map(({ name }) => name)).toEqual(['sanitize-memcheck', 'sanitize-racecheck']);
    for (const told of [host, ...host.runs]) expect(told.commit).toMatch(new RegExp(`^${commit}`));
  });
});
