import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type TranspiledSources, transpileSources } from '../../support/transpiled-sources.js';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));

/** Loads the addon in a package that has no working one, and prints the error. */
const PROGRAM = `
  const { capabilities } = await import(process.argv[1]);
  const error = await capabilities().then(() => null, (error) => error);
  console.log(JSON.stringify(error === null ? null : { code: error.code, message: error.message }));
`;

describe('the addon loader', () => {
  let home: string;
  let sources: TranspiledSources;

  beforeEach(() => {
    home = mkdtempSync(join(tmpdir(), 'kvt loader '));
    sources = transpileSources(['agent/native']);
    copyFileSync(join(ROOT, 'package.json'), join(home, 'package.json'));
    writeFileSync(join(home, 'binding.gyp'), '{}');
    symlinkSync(join(ROOT, 'node_modules'), join(home, 'node_modules'));
    mkdirSync(join(home, 'src'));
    spawnSync('cp', ['-r', join(sources.path('agent/native'), '../..'), join(home, 'src')]);
  });
  afterEach(() => {
    sources.remove();
    rmSync(home, { recursive: true, force: true });
  });

  function load(): { readonly code: string; readonly message: string } | null {
    const module = spawnSync('find', [join(home, 'src'), '-name', 'native.js'], { encoding: 'utf8' }).stdout.trim();
    const run = spawnSync(process.execPath, ['--input-type=module', '-e', PROGRAM, module], { encoding: 'utf8' });
    expect(run.stderr).toBe('');
    return JSON.parse(run.stdout) as { code: string; message: string } | null;
  }

  it('says that there is no addon, where it looked and what to do', () => {
    const error = load();
    expect(error?.code).toBe('ERR_KVT_CAPABILITY');
    expect(error?.message).toContain(home);
    expect(error?.message).toContain('npm run build');
  });

  it('says so when the file is not an addon', () => {
    mkdirSync(join(home, 'build/Release'), { recursive: true });
    writeFileSync(join(home, 'build/Release/kv_transceiver.node'), 'not an ELF file');
    const error = load();
    expect(error?.code).toBe('ERR_KVT_CAPABILITY');
    expect(error?.message).toMatch(/invalid ELF header|file too short/);
    expect(error?.message).toContain('npm run build');
  });

  it('finds a good one from a path with a space', () => {
    mkdirSync(join(home, 'build'));
    symlinkSync(join(ROOT, 'build/Release'), join(home, 'build/Release'));
    expect(load()).toBeNull();
  });
});
