// `npm run sim -- --pack FILE`: the simulator, every mutant of it and this Node in one archive, for a machine that has many cores and nothing else.
//
//   tar xf FILE && kv-transceiver-sim/sim --runs 1000000 --jobs 16
import { cpSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { packArchive } from '../support/pack-archive.mjs';
import { compileSimulator, javaScript, patched, readSources } from './compile.mjs';
import { PACKED_FOLDER } from './kit.mjs';

/** @param path ends in .tar.xz, .tar.gz or .tgz @returns the exit status */
export function packSimulator(path) {
  return packArchive({
    path,
    name: 'kv-transceiver-sim',
    command: 'sim',
    script: 'test/sim/run.mjs',
    // What the sources import; the messaging library is loaded and not used.
    packages: ['@msgpack/msgpack', 'zeromq', 'cmake-ts'],
    fill: async (stage) => {
      await putBuilds(join(stage, PACKED_FOLDER));
      mkdirSync(join(stage, 'test/sim'), { recursive: true });
      const here = fileURLToPath(new URL('.', import.meta.url));
      for (const file of readdirSync(here))
        if (file.endsWith('.mjs')) cpSync(join(here, file), join(stage, 'test/sim', file));
    },
  });
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
