// Documents against the code they speak of: links, error codes, npm scripts, figures, docstrings of the public exports.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { FILES } from './gpu-runs.mjs';
import { outdatedDocuments } from './readme-figures.mjs';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const problems = [];
const read = (file) => readFileSync(join(ROOT, file), 'utf8');

const documents = [
  ...readdirSync(ROOT).filter((name) => name.endsWith('.md')),
  ...['docs', 'native', 'test', 'bench', 'src'].flatMap((folder) =>
    existsSync(join(ROOT, folder))
      ? readdirSync(join(ROOT, folder), { recursive: true })
          .filter((name) => name.endsWith('.md'))
          .map((name) => join(folder, name))
      : [],
  ),
];

for (const document of documents) {
  for (const [, target] of read(document).matchAll(/\]\(([^)\s]+)\)/g)) {
    if (/^(?:https?:|mailto:|#)/.test(target)) continue;
    const file = join(dirname(document), target.replace(/#.*$/, ''));
    if (!existsSync(join(ROOT, file))) problems.push(`${document}: link to ${target}, which does not exist`);
  }
}

const codes = [...read('src/errors.ts').matchAll(/^\s+(ERR_KVT_[A-Z_]+):/gm)].map((match) => match[1]);
const errorDocument = existsSync(join(ROOT, 'docs/errors.md')) ? read('docs/errors.md') : '';
for (const code of codes) {
  if (!new RegExp(`^#+ .*${code}\\b`, 'm').test(errorDocument)) problems.push(`docs/errors.md: no entry for ${code}`);
}
for (const [, code] of errorDocument.matchAll(/^#+ .*\b(ERR_KVT_[A-Z_]+)\b/gm)) {
  if (!codes.includes(code)) problems.push(`docs/errors.md: ${code} is not in src/errors.ts`);
}

const scripts = JSON.parse(read('package.json')).scripts ?? {};
for (const document of documents) {
  for (const [, script] of read(document).matchAll(/\bnpm run ([a-z][\w:-]*)/g)) {
    if (scripts[script] === undefined) problems.push(`${document}: 'npm run ${script}' is not in package.json`);
  }
}

for (const { document } of outdatedDocuments()) {
  problems.push(`${document}: figures differ from bench/results; run \`node scripts/readme-figures.mjs\``);
}

// A result of a GPU run under another name would be read by nothing.
const known = new Set(
  Object.values(FILES).flatMap((files) => (typeof files === 'string' ? [files] : Object.values(files))),
);
const machines = join(ROOT, 'bench/results');
for (const machine of existsSync(machines) ? readdirSync(machines) : []) {
  if (!existsSync(join(machines, machine, FILES.host))) continue;
  for (const file of readdirSync(join(machines, machine))) {
    if (file.endsWith('.json') && !known.has(file)) {
      problems.push(`bench/results/${machine}/${file}: no run of scripts/gpu-runs.mjs writes such a file`);
    }
  }
}

const entry = join(ROOT, 'src/index.ts');
if (existsSync(entry)) {
  const program = ts.createProgram([entry], {
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    target: ts.ScriptTarget.ES2023,
    noEmit: true,
    skipLibCheck: true,
    types: ['node'],
  });
  const checker = program.getTypeChecker();
  const module = checker.getSymbolAtLocation(program.getSourceFile(entry));
  for (const exported of module === undefined ? [] : checker.getExportsOfModule(module)) {
    const symbol = exported.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported;
    if (symbol.getDocumentationComment(checker).length > 0) continue;
    const declared = symbol.declarations?.[0]?.getSourceFile().fileName ?? entry;
    problems.push(`${relative(ROOT, declared)}: the exported ${exported.name} has no docstring`);
  }
}

for (const problem of problems) process.stderr.write(`${problem}\n`);
process.stdout.write(problems.length === 0 ? 'docs: ok\n' : `docs: ${problems.length} problems\n`);
process.exitCode = problems.length === 0 ? 0 : 1;
