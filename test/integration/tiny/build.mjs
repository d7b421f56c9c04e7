// The cases as JavaScript: from the sources, or what `--pack` made of them.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
/** Beside the tests in an archive, and nowhere else. */
export const PACKED_FOLDER = 'packed';
const FOLDERS = ['src', 'test/integration/tiny', 'test/sim-lite'];
const CACHE = join(ROOT, 'node_modules', '.cache', 'kv-transceiver-tiny');
const WORKER = 'test/integration/tiny/series-worker.js';
const CHECKS = 'test/integration/tiny/check-case.js';

/** @returns where the process of a series is, and what it checks with */
export async function openBuild() {
  const packed = join(ROOT, PACKED_FOLDER);
  const folder = existsSync(packed) ? packed : await buildInCache();
  return { worker: join(folder, WORKER), checks: join(folder, CHECKS) };
}

/** Writes the JavaScript of everything that the cases are made of. */
export async function buildInto(folder) {
  // Types are only stripped, which Node 20 cannot. An archive has no compiler, and needs none.
  const { javaScript } = await import('../../sim/compile.mjs');
  for (const [file, text] of readSources()) {
    const path = join(folder, file.replace(/\.ts$/, '.js'));
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, javaScript(text));
  }
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
}

async function buildInCache() {
  const key = createHash('sha256');
  for (const [file, text] of readSources()) key.update(file).update('\0').update(text).update('\0');
  const folder = join(CACHE, `build-${key.digest('hex').slice(0, 24)}`);
  if (existsSync(join(folder, 'complete'))) return folder;
  rmSync(CACHE, { recursive: true, force: true });
  await buildInto(folder);
  writeFileSync(join(folder, 'complete'), '');
  return folder;
}

function readSources() {
  return FOLDERS.flatMap((folder) => readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile() && /\.ts$/.test(entry.name) && !/\.test\.ts$/.test(entry.name))
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)))
    .sort()
    .map((file) => [file, readFileSync(join(ROOT, file), 'utf8')]);
}
