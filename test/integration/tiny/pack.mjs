// `npm run test:tiny -- --pack FILE`: the cases and this Node in one archive, for a machine that has many cores and nothing else.
import { cpSync, mkdirSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { packArchive } from '../../support/pack-archive.mjs';
import { buildInto, PACKED_FOLDER } from './build.mjs';

const HERE = 'test/integration/tiny';

/** @param path ends in .tar.xz, .tar.gz or .tgz @returns the exit status */
export function packCases(path) {
  return packArchive({
    path,
    name: 'kv-transceiver-tiny',
    command: 'tiny',
    script: `${HERE}/run.mjs`,
    // What the sources import; the messaging library is loaded and not used.
    packages: ['@msgpack/msgpack', 'zeromq', 'cmake-ts'],
    fill: async (stage) => {
      await buildInto(join(stage, PACKED_FOLDER));
      mkdirSync(join(stage, HERE), { recursive: true });
      const here = fileURLToPath(new URL('.', import.meta.url));
      for (const file of readdirSync(here))
        if (file.endsWith('.mjs')) cpSync(join(here, file), join(stage, HERE, file));
    },
  });
}
