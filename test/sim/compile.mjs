// Turns src/ and test/sim/ into JavaScript in a cache folder, and applies mutants on the way: the only place where one can exist.
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { leanLiterals } from './lean-literals.mjs';
import { plainFields } from './plain-fields.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** Ignored by git, and below it packages resolve as they do in the sources. */
const CACHE = join(ROOT, 'node_modules', '.cache', 'kv-transceiver-sim');
const OPTIONS = {
  target: ts.ScriptTarget.ES2023,
  module: ts.ModuleKind.ESNext,
  verbatimModuleSyntax: true,
  // Fields are assigned in the constructor: where code is not optimized yet, that costs less than to define them.
  useDefineForClassFields: false,
};
const TRANSFORMERS = { before: [plainFields, leanLiterals] };
/** What is in the cache was made by these. */
const COMPILER = createHash('sha256')
  .update(ts.version)
  .update(JSON.stringify(OPTIONS))
  .update(readFileSync(new URL('./plain-fields.mjs', import.meta.url)))
  .update(readFileSync(new URL('./lean-literals.mjs', import.meta.url)))
  .digest('hex');

/** File -> text of everything the simulator is made of, as it is now. */
export function readSources() {
  const files = ['src', 'test/sim']
    .flatMap((folder) => readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true }))
    .filter((entry) => entry.isFile() && /\.ts$/.test(entry.name) && !/\.test\.ts$/.test(entry.name))
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)))
    .sort();
  return new Map(files.map((file) => [file, readFileSync(join(ROOT, file), 'utf8')]));
}

/** @returns the JavaScript of `text`, from the cache when it was compiled before */
export function javaScript(text) {
  const file = join(CACHE, 'by-content', `${contentKey(text)}.js`);
  if (existsSync(file)) return readFileSync(file, 'utf8');
  const { outputText } = ts.transpileModule(text, { compilerOptions: OPTIONS, transformers: TRANSFORMERS });
  write(file, outputText);
  return outputText;
}

function contentKey(text) {
  return createHash('sha256').update(COMPILER).update(text).digest('hex').slice(0, 32);
}

/** Whole or not at all: two runs may compile at once. */
function write(file, text) {
  mkdirSync(dirname(file), { recursive: true });
  const temporary = `${file}.${process.pid}`;
  writeFileSync(temporary, text);
  renameSync(temporary, file);
}

/**
 * @param patch one source file with one passage replaced; none = the sources as they are
 * @param snapshot what `readSources` gave, so that a long series does not see later edits
 * @returns where the command line and a worker of this build are, and how to remove a patched one
 * @throws when the passage is not there exactly once
 */
export function compileSimulator(patch = null, snapshot = readSources()) {
  const texts = new Map(snapshot);
  if (patch !== null) texts.set(patch.file, patched(texts.get(patch.file), patch));
  const key = createHash('sha256').update(COMPILER);
  for (const [file, text] of texts) key.update(file).update('\0').update(text).update('\0');
  const out = join(CACHE, `build-${key.digest('hex').slice(0, 24)}`);
  if (!existsSync(join(out, 'complete'))) {
    write(join(out, 'package.json'), '{ "type": "module" }');
    for (const [file, text] of texts) write(join(out, file.replace(/\.ts$/, '.js')), javaScript(text));
    write(join(out, 'complete'), '');
  }
  if (patch === null) dropOldBuilds(out);
  return {
    cli: join(out, 'test/sim/cli.js'),
    remove: () => rmSync(out, { recursive: true, force: true }),
  };
}

/** @throws when the passage is not there exactly once */
export function patched(text, { file, find, replace }) {
  const count = text === undefined ? 0 : text.split(find).length - 1;
  if (count !== 1) throw new Error(`${file} has ${count} places that read ${JSON.stringify(find)}, not one`);
  return text.replace(find, () => replace);
}

/** Builds of sources that are no more; those of the last hour may be in use. */
function dropOldBuilds(current) {
  const hourAgo = Date.now() - 3_600_000;
  for (const entry of readdirSync(CACHE, { withFileTypes: true })) {
    const folder = join(CACHE, entry.name);
    if (!entry.name.startsWith('build-') || folder === current) continue;
    if (ageOf(folder) < hourAgo) rmSync(folder, { recursive: true, force: true });
  }
}

function ageOf(folder) {
  const marker = join(folder, 'complete');
  if (!existsSync(marker)) return Date.now();
  return Number(statSync(marker).mtimeMs);
}
