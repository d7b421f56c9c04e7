// `npm run sim -- --pack FILE`: the simulator, every mutant of it and this Node in one archive, for a machine that has many cores and nothing else.
//
//   tar xf FILE && kv-transceiver-sim/sim --runs 1000000 --jobs 16
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { compileSimulator, javaScript, patched, readSources } from './compile.mjs';
import { PACKED_FOLDER } from './kit.mjs';

const NAME = 'kv-transceiver-sim';
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** What the sources import; the messaging library is loaded and not used. */
const PACKAGES = ['@msgpack/msgpack', 'zeromq', 'cmake-ts'];
const START = `#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/node" "$here/test/sim/run.mjs" "$@"
`;

/** @param path ends in .tar.xz, .tar.gz or .tgz @returns the exit status */
export async function packSimulator(path) {
  const folder = mkdtempSync(join(tmpdir(), 'kvt-sim-pack-'));
  try {
    const stage = join(folder, NAME);
    await putBuilds(join(stage, PACKED_FOLDER));
    for (const name of PACKAGES) putPackage(stage, name);
    mkdirSync(join(stage, 'test/sim'), { recursive: true });
    const here = fileURLToPath(new URL('.', import.meta.url));
    for (const file of readdirSync(here))
      if (file.endsWith('.mjs')) cpSync(join(here, file), join(stage, 'test/sim', file));
    cpSync(process.execPath, join(stage, 'node'), { dereference: true });
    writeFileSync(join(stage, 'sim'), START);
    chmodSync(join(stage, 'sim'), 0o755);
    const out = resolve(path);
    mkdirSync(dirname(out), { recursive: true });
    execFileSync('tar', ['caf', out, '-C', folder, NAME], {
      stdio: 'inherit',
      env: { ...process.env, XZ_OPT: '-1 -T0' },
    });
    process.stdout.write(`${out}: ${(statSync(out).size / 2 ** 20).toFixed(1)} MiB\n`);
    return 0;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function putBuilds(packed) {
  const snapshot = readSources();
  const { cli } = compileSimulator(null, snapshot);
  const { mutants } = (await import(pathToFileURL(cli).href)).listMutants();
  const put = (path, text) => {
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, text);
  };
  put(join(packed, 'base/package.json'), '{ "type": "module" }');
  for (const [file, text] of snapshot) put(join(packed, 'base', file.replace(/\.ts$/, '.js')), javaScript(text));
  for (const [number, mutant] of mutants.entries())
    put(join(packed, 'mutants', `${number}.js`), javaScript(patched(snapshot.get(mutant.file), mutant)));
  put(join(packed, 'mutants.json'), JSON.stringify(mutants));
}

/** Without builds for other systems. */
function putPackage(stage, name) {
  const foreign =
    /\/build\/(?:darwin|win32)(?:\/|$)|\/build\/linux\/(?!x64|arm64)|-musl|\/musl-|\/(?:src|script|docs?)(?:\/|$)|\.map$/;
  const native = `${process.platform}/${process.arch}`;
  cpSync(join(ROOT, 'node_modules', name), join(stage, 'node_modules', name), {
    recursive: true,
    filter: (path) => {
      const inside = path.slice(join(ROOT, 'node_modules', name).length);
      if (foreign.test(inside)) return false;
      return !/\/build\/linux\/[^/]+/.test(inside) || inside.includes(`/build/${native}`);
    },
  });
}
