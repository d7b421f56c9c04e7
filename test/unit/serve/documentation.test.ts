import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { flagName } from '../../../src/cli/options.js';
import { SERVE_OPTIONS } from '../../../src/cli/serve-options.js';
import { parseDisaggConfigFile } from '../../../src/config/index.js';
import { loadEngine } from '../../../src/serve/engine/load-engine.js';

const read = (file: string): string => readFileSync(new URL(`../../../docs/${file}`, import.meta.url), 'utf8');

const SECTION = { role: 'context', tensorParallelSize: 1 } as const;

describe('docs/serve.md', () => {
  it('lists every option with the default that holds', () => {
    const rows = [...read('serve.md').matchAll(/^\| (`--.*?) \|\s*(.*?)\s*\|/gm)];
    const documented = rows.flatMap(([, names = '', fallback]) =>
      [...names.matchAll(/`(--[\w-]+)/g)].map(([, name]) => [name, fallback]),
    );
    const expected = Object.entries(SERVE_OPTIONS).map(([key, { fallback }]) => [flagName(key), fallback]);
    const stated: Readonly<Record<string, string>> = {
      '--engine': 'tiny',
      '--port': "the file's",
      '--schedule-style': "the file's",
      '--max-body': '64 KiB and 32 bytes for each token of the model',
    };
    expect(documented).toEqual(expected.map(([name, fallback]) => [name, fallback ?? stated[name as string] ?? '']));
  });

  it('has examples that are read as they stand', () => {
    const local = parseDisaggConfigFile(read('examples/serve.yaml'));
    expect([local.context.instanceCount, local.generation.router, local.warnings]).toEqual([2, 'least_loaded', []]);
    const remote = parseDisaggConfigFile(read('examples/serve-remote.yaml'));
    expect(remote.context.urls).toEqual(['10.0.0.11:9100', '10.0.0.12:9100']);
  });

  it('gives the tiny engine’s settings with the defaults that hold', async () => {
    const stated = { seed: 1, max_model_tokens: 2048, tokens_per_block: 16, cache_tokens: 65_536 };
    for (const [key, value] of Object.entries(stated))
      expect(read('serve.md')).toMatch(new RegExp(`\`${key}\` \\(${value}`));
    const [byDefault, explicit] = await Promise.all([
      loadEngine(null, {}, SECTION),
      loadEngine(null, { ...stated, dtype: 'bfloat16' }, SECTION),
    ]);
    expect(explicit.maxModelTokens).toBe(byDefault.maxModelTokens);
    expect(explicit.tokensPerBlock).toBe(byDefault.tokensPerBlock);
  });
});

describe('an engine of the user’s', () => {
  it.each<[string, string, RegExp]>([
    ['is not there', '/nonexistent/engine.mjs', /cannot be loaded/],
    ['is no engine', fileURLToPath(new URL('../../../src/clock.ts', import.meta.url)), /its default export must be/],
  ])('%s', async (_, module, message) => {
    await expect(loadEngine(module, {}, SECTION)).rejects.toThrow(message);
  });
});
