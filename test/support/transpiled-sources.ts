import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const SRC = join(ROOT, 'src');
/** Ignored by git, and below it packages resolve as they do in the sources. */
const CACHE = join(ROOT, 'node_modules', '.cache', 'kv-transceiver-tests');

export interface TranspiledSources {
  /** Absolute path of the JavaScript of a module, named as it was for `transpileSources`. */
  path(module: string): string;
  remove(): void;
}

/**
 * JavaScript of some modules and all they import, for child processes, which run without a TypeScript loader. Types are only stripped. A
 * module outside src/ is named by its way from there, e.g. `../test/integration/faults/server-entry`.
 */
export function transpileSources(entries: readonly string[]): TranspiledSources {
  mkdirSync(CACHE, { recursive: true });
  const out = mkdtempSync(join(CACHE, 'sources-'));
  // Above src/, as the package's own, whose version the sources read.
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { readonly version: string };
  writeFileSync(join(out, 'package.json'), JSON.stringify({ type: 'module', version }));
  const seen = new Set<string>();
  const open = entries.map((entry) => join(SRC, `${entry}.ts`));
  for (let file = open.pop(); file !== undefined; file = open.pop()) {
    if (seen.has(file)) continue;
    seen.add(file);
    const javaScript = transpile(readFileSync(file, 'utf8'));
    const target = join(out, relative(ROOT, file).replace(/\.ts$/, '.js'));
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, javaScript);
    for (const { fileName } of ts.preProcessFile(javaScript).importedFiles) {
      if (fileName.startsWith('.')) open.push(resolve(dirname(file), fileName.replace(/\.js$/, '.ts')));
    }
  }
  return {
    path: (module) => join(out, 'src', `${module}.js`),
    remove: () => rmSync(out, { recursive: true, force: true }),
  };
}

function transpile(source: string): string {
  const { outputText } = ts.transpileModule(source, {
    compilerOptions: { target: ts.ScriptTarget.ES2023, module: ts.ModuleKind.ESNext, verbatimModuleSyntax: true },
  });
  return outputText;
}
