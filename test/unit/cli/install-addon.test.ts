import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, it } from 'vitest';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
const { binary } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
  readonly binary: { readonly interface_version: number };
};

let folder = '';
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'install-addon-'));
  mkdirSync(join(folder, 'scripts'));
  copyFileSync(join(ROOT, 'scripts/install-addon.cjs'), join(folder, 'scripts/install-addon.cjs'));
  // Says that it was called instead of compiling.
  writeFileSync(
    join(folder, 'scripts/build-addon.cjs'),
    `const root = ${JSON.stringify(folder)};
     module.exports = { root, BuildError: class extends Error {}, build: () => require('fs').writeFileSync(root + '/built', '') };`,
  );
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
});
afterEach(() => rmSync(folder, { recursive: true }));

function expectInterface(version: number): void {
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ binary: { interface_version: version } }));
}

function installBuilds(): boolean {
  const { status, stderr } = spawnSync(process.execPath, [join(folder, 'scripts/install-addon.cjs')], {
    encoding: 'utf8',
  });
  expect([status, stderr]).toEqual([0, '']);
  return existsSync(join(folder, 'built'));
}

it.each(['build/Release', `prebuilds/linux-${process.arch}`])(
  'an addon of another interface in %s is stale',
  (place) => {
    mkdirSync(join(folder, place), { recursive: true });
    const file = place.startsWith('prebuilds') ? 'node.napi.node' : 'kv_transceiver.node';
    copyFileSync(join(ROOT, 'build/Release/kv_transceiver.node'), join(folder, place, file));
    expectInterface(binary.interface_version);
    expect(installBuilds()).toBe(false);
    expectInterface(binary.interface_version + 1);
    expect(installBuilds()).toBe(true);
  },
);

it('the loader reads the number that the installation reads', () => {
  for (const part of ['dist', 'build', 'binding.gyp'])
    cpSync(join(ROOT, part), join(folder, part), { recursive: true });
  const load = (version: number): string => {
    const manifest = { type: 'module', version: '0.0.0', binary: { interface_version: version } };
    writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest));
    const script = `import('${folder}/dist/agent/native.js').then((n) => { n.loadNative(); console.log('loaded'); }).catch((e) => console.log(e.message))`;
    return spawnSync(process.execPath, ['-e', script], { encoding: 'utf8' }).stdout;
  };
  expect(load(binary.interface_version)).toBe('loaded\n');
  expect(load(binary.interface_version + 1)).toContain(
    `(interface ${binary.interface_version}, expected ${binary.interface_version + 1})`,
  );
});
