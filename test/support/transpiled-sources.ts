import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

export interface TranspiledSources {
  /** Absolute path of the JavaScript of a file under src/, e.g. `wire/index`. */
  path(module: string): string;
  remove(): void;
}

/**
 * JavaScript of src/ for child processes, which run without a TypeScript loader. Types are only stripped, so this takes well under a
 * second. Lies inside the repository, so that packages resolve.
 */
export function transpileSources(folders: readonly string[]): TranspiledSources {
  const build = join(ROOT, 'build');
  mkdirSync(build, { recursive: true });
  const out = mkdtempSync(join(build, 'test-sources-'));
  for (const folder of folders) {
    const from = join(ROOT, 'src', folder);
    for (const entry of readdirSync(from, { withFileTypes: true })) {
      if (entry.isFile() && entry.name.endsWith('.ts')) {
        const target = join(out, folder, entry.name.replace(/\.ts$/, '.js'));
        mkdirSync(dirname(target), { recursive: true });
        writeFileSync(target, transpile(readFileSync(join(from, entry.name), 'utf8')));
      }
    }
  }
  writeFileSync(join(out, 'package.json'), '{ "type": "module" }');
  return {
    path: (module) => join(out, `${module}.js`),
    remove: () => rmSync(out, { recursive: true, force: true }),
  };
}

function transpile(source: string): string {
  const { outputText } = ts.transpileModule(source, {
    compilerOptions: {
      target: ts.ScriptTarget.ES2023,
      module: ts.ModuleKind.ESNext,
      verbatimModuleSyntax: true,
    },
  });
  return outputText;
}
