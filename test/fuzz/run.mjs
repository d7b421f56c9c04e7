// `npm run fuzz`: compiles the sources and the fuzzer once, as the simulator does, and runs the command line.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { compileSimulator, readSources } from '../sim/compile.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const sources = readSources();
const files = readdirSync(join(ROOT, 'test/fuzz')).filter((name) => /(?<!\.test)\.ts$/.test(name));
for (const file of [...files.map((name) => `test/fuzz/${name}`), 'test/property/wire-arbitraries.ts'])
  sources.set(file, readFileSync(join(ROOT, file), 'utf8'));

const out = join(dirname(compileSimulator(null, sources).cli), '../..');
const { main } = await import(pathToFileURL(join(out, 'test/fuzz/cli.js')).href);
process.exitCode = main(process.argv.slice(2));
