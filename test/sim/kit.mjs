// Where builds of the simulator come from: the sources, or what `--pack` made of them.
import { cpSync, existsSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** Beside this folder in an archive, and nowhere else. */
export const PACKED_FOLDER = 'packed';
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PACKED = join(ROOT, PACKED_FOLDER);

/** Every portion of long work ends after one unit, so that whatever can come between two units does. */
const SHORT_TURNS = {
  file: 'src/turn-budget.ts',
  find: 'return this.#clock.now() - this.#sinceMs > PORTION_MS;',
  replace: 'return this.#clock.now() - this.#sinceMs > -PORTION_MS;',
};

/**
 * @param options.shortTurns the clock stands still while simulated code works, so that no portion of long work ends early; with this, each does
 * @returns `cli`: the command line of the sources as they are; `mutants`; `build(mutant)`: a build with that mutant, and how to remove it
 */
export async function openKit({ shortTurns = false } = {}) {
  if (existsSync(PACKED)) {
    if (shortTurns) throw new Error('--short-turns needs the sources, which a packed simulator has not');
    return packedKit();
  }
  const { compileSimulator, readSources } = await import('./compile.mjs');
  // Read once, so that a long series does not see later edits.
  const snapshot = readSources();
  const { cli } = compileSimulator(shortTurns ? SHORT_TURNS : null, snapshot);
  const { listMutants } = await import(pathToFileURL(cli).href);
  return { cli, mutants: listMutants().mutants, build: (mutant) => compileSimulator(mutant, snapshot) };
}

/** `base` is the tree of JavaScript; `mutants/N.js` is the one file of it that mutant N changes. */
function packedKit() {
  const mutants = JSON.parse(readFileSync(join(PACKED, 'mutants.json'), 'utf8'));
  return {
    cli: cliIn(join(PACKED, 'base')),
    mutants,
    build: (mutant) => {
      const number = mutants.indexOf(mutant);
      const folder = join(PACKED, `build-${number}`);
      cpSync(join(PACKED, 'base'), folder, { recursive: true });
      cpSync(join(PACKED, 'mutants', `${number}.js`), join(folder, mutant.file.replace(/\.ts$/, '.js')));
      return { cli: cliIn(folder), remove: () => rmSync(folder, { recursive: true, force: true }) };
    },
  };
}

function cliIn(folder) {
  return join(folder, 'test/sim/cli.js');
}

/** The program that lives ranges of seeds for a series. */
export function workerOf(cli) {
  return join(dirname(cli), 'series-worker.js');
}
