import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { ERROR_CODES } from '../../src/errors.js';

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
      'npm run nixl && npm run ttft -- --agent nixl',
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

it('documents every error code, and none that does not exist', () => {
  const documented = [...read('docs/errors.md').matchAll(/^#+ .*\b(ERR_KVT_[A-Z_]+)\b/gm)].map((match) => match[1]);
  expect(documented.sort()).toEqual(Object.keys(ERROR_CODES).sort());
});

it('lists every bench in docs/bench.md', () => {
  const overview = execFileSync(process.execPath, ['dist/cli/main.js', '--help'], { cwd: ROOT, encoding: 'utf8' });
  const benches = [...overview.matchAll(/^ {2}bench (\w+)/gm)].map((match) => match[1]);
  expect(benches).toEqual(['ttft', 'transfer', 'dispatch']);
  for (const bench of benches) expect(read('docs/bench.md')).toContain(`## \`${bench}\``);
});
