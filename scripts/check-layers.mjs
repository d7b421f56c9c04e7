// The layer rules of docs/architecture.md, checked on the import and include lines of every source file.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const violations = [];

function filesUnder(folder, extensions) {
  return readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && extensions.some((extension) => entry.name.endsWith(extension)))
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)));
}

function report(file, text) {
  violations.push(`${file}: ${text}`);
}

/** Folders of src that may import only what is listed (a folder, or one file with its extension). */
const PURE = ['src/geometry/', 'src/mapping/', 'src/config/', 'src/errors.ts'];
const AGENT_INTERFACES = ['src/agent/transfer-agent.ts', 'src/agent/page-content.ts'];
const ADDON_LOADER = 'src/agent/native.ts';

/** Where real time, sockets and processes may be touched. */
const REAL_WORLD = [
  'src/clock.ts',
  'src/loop-turns.ts',
  'src/agent/',
  'src/cli/',
  'src/serve/front/connection-watch.ts',
  'src/serve/front/front-response.ts',
  'src/serve/front/http-listener.ts',
  'src/serve/front/serve-front.ts',
  'src/serve/front/worker-process.ts',
  'src/serve/worker/worker-entry.ts',
];
const REAL_WORLD_PATTERN =
  /\b(?:Date\.now|setTimeout|setInterval|performance\.now|process\.hrtime)\s*\(|from '(?:node:(?:net|dgram|tls|http|https)|zeromq)'/;

function isIn(file, places) {
  return places.some((place) => (place.endsWith('/') ? file.startsWith(place) : file === place));
}

for (const file of filesUnder('src', ['.ts'])) {
  const source = readFileSync(join(ROOT, file), 'utf8');
  const imports = [...source.matchAll(/(?:from|import)\s*\(?\s*'([^']+)'/g)].map((match) => match[1]);
  if (/['"]node-gyp-build['"]|\bdlopen\(|\.node['"]/.test(source) && file !== ADDON_LOADER) {
    report(file, `only ${ADDON_LOADER} loads the addon`);
  }
  for (const specifier of imports) {
    if (!specifier.startsWith('.')) continue;
    const target = relative(ROOT, join(ROOT, dirname(file), specifier)).replace(/\.js$/, '.ts');
    if (!target.startsWith('src/')) report(file, `imports ${target}, which is outside src`);
    if (isIn(file, ['src/geometry/', 'src/mapping/', 'src/config/']) && !isIn(target, PURE)) {
      report(file, `imports ${target}; geometry, mapping and config import only each other and errors`);
    }
    if (
      isIn(file, ['src/session/', 'src/wire/']) &&
      target.startsWith('src/agent/') &&
      !AGENT_INTERFACES.includes(target)
    ) {
      report(file, `imports ${target}; session and wire know agents by their interface only`);
    }
    if (target.startsWith('src/serve/') && !isIn(file, ['src/serve/', 'src/cli/', 'src/index.ts']))
      report(file, `imports ${target}; the server stands on the library, not under it`);
    if (target.startsWith('src/cli/') && !file.startsWith('src/cli/')) report(file, 'nothing imports the command line');
  }
  const isMessengerImplementation = /^src\/wire\/zeromq-[^/]*\.ts$/.test(file);
  if (!isIn(file, REAL_WORLD) && !isMessengerImplementation) {
    source.split('\n').forEach((line, index) => {
      const code = line.replace(/\/\/.*$|^\s*\*.*$/, '');
      const match = REAL_WORLD_PATTERN.exec(code);
      if (match !== null)
        report(`${file}:${index + 1}`, `'${match[0]}' belongs behind Clock, Messenger or TransferAgent`);
    });
  }
}

/** Each native folder may include itself and what stands before it. */
const NATIVE_LAYERS = ['core', 'device', 'transport', 'engine', 'addon'];

for (const file of filesUnder('native', ['.h', '.cc', '.cu'])) {
  const layer = NATIVE_LAYERS.indexOf(file.split('/')[1]);
  const source = readFileSync(join(ROOT, file), 'utf8');
  for (const [, included] of source.matchAll(/^\s*#include\s+[<"]([^>"]+)[>"]/gm)) {
    if (/^(?:napi|node_api)/.test(included) && layer !== NATIVE_LAYERS.indexOf('addon')) {
      report(file, `includes ${included}; only native/addon knows N-API`);
    }
    const target = NATIVE_LAYERS.indexOf(included.split('/')[0]);
    if (layer >= 0 && target > layer) {
      report(file, `includes ${included}; the order is ${NATIVE_LAYERS.join(' <- ')}`);
    }
  }
  if (file.startsWith('native/core/') && /#include\s+<(?:thread|mutex|condition_variable|dlfcn\.h)>/.test(source)) {
    report(file, 'core knows no threads or libraries');
  }
}

for (const violation of violations) process.stderr.write(`${violation}\n`);
process.stdout.write(violations.length === 0 ? 'layers: ok\n' : `layers: ${violations.length} violations\n`);
process.exitCode = violations.length === 0 ? 0 : 1;
