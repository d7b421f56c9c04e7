import { execFile, execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, describe, expect, it } from 'vitest';
import { ERROR_CODES } from '../../src/errors.js';
import { HANG_LIMIT_MS } from '../support/deadline.js';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const read = (file: string): string => readFileSync(`${ROOT}${file}`, 'utf8');
const scripts = (JSON.parse(read('package.json')) as { scripts: Record<string, string> }).scripts;

describe('README', () => {
  const readme = read('README.md');

  it('names only commands that exist', () => {
    const commands = [...readme.matchAll(/^npm (?:ci|run|test|i)\b.*$/gm)].map(([line]) => line);
    expect(commands).toEqual([
      'npm ci && npm run ttft',
      'npm ci && npm test',
      'npm run ttft -- --model llama-3.3-70b --prompt-tokens 1k --context-tp 2 --generation-tp 4',
      'npm run bench -- trace --report report',
      'npm run nixl && npm run ttft -- --agent nixl',
      'npm ci && npm run serve',
    ]);
    for (const [, script] of readme.matchAll(/npm run ([\w:-]+)/g)) expect(Object.keys(scripts)).toContain(script);
    expect(scripts['test']).toBeDefined();
  });

  it('shows the figures of bench/results and no others', () => {
    // Throws, with the reason on standard error, when README.md differs from what the script would write.
    execFileSync(process.execPath, ['scripts/readme-figures.mjs', '--check'], {
      cwd: ROOT,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
  });
});

describe('README example', () => {
  const folder = mkdtempSync(join(tmpdir(), 'readme-example-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  it('runs as it stands', async () => {
    const example = /```js\n([\s\S]*?)```/.exec(read('README.md'))?.[1] ?? '';
    const file = join(folder, 'example.mjs');
    writeFileSync(file, example.replace("'kv-transceiver'", JSON.stringify(`${ROOT}dist/index.js`)));
    const { stdout } = await promisify(execFile)(process.execPath, [file], { timeout: HANG_LIMIT_MS });
    expect(stdout).toBe('completed 4\n');
  });
});

it('documents every error code, and none that does not exist', () => {
  const documented = [...read('docs/errors.md').matchAll(/^#+ .*\b(ERR_KVT_[A-Z_]+)\b/gm)].map((match) => match[1]);
  expect(documented.sort()).toEqual(Object.keys(ERROR_CODES).sort());
});

it('lists every bench in docs/bench.md', () => {
  const overview = execFileSync(process.execPath, ['dist/cli/main.js', '--help'], { cwd: ROOT, encoding: 'utf8' });
  const benches = [...overview.matchAll(/^ {2}bench (\w+)/gm)].map((match) => match[1]);
  expect(benches).toEqual('ttft trace transfer dispatch interference scale sessions serve report'.split(' '));
  for (const bench of benches) expect(read('docs/bench.md')).toContain(`## \`${bench}\``);
});
