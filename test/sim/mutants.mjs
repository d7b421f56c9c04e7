// `npm run sim -- --mutants`: compiles the simulator once per mutant and lets each build hunt until it breaks a rule.
import { spawn } from 'node:child_process';
import { pathToFileURL } from 'node:url';
import { compileSimulator, readSources } from './compile.mjs';

/**
 * A mutant that neither breaks a rule nor ends within so much time of its own has hung, which is a catch of its own. Processor time: on a
 * busy machine a mutant that nothing catches must not pass for one.
 */
const LIMIT_S = 120;

/** @returns the exit status: 0 = every mutant was caught */
export async function runMutants({ lives, only }) {
  const snapshot = readSources();
  const { mutants } = await import(pathToFileURL(compileSimulator(null, snapshot).cli).href).then((build) =>
    build.listMutants(),
  );
  const chosen = only === undefined ? mutants : mutants.filter(({ name }) => name.includes(only));
  if (chosen.length === 0) throw new Error(`no mutant has ${JSON.stringify(only)} in its name`);
  let missed = 0;
  process.stdout.write('| mutant | file | caught by | lives |\n|---|---|---|---:|\n');
  for (const mutant of chosen) {
    const result = await hunt(mutant, lives, snapshot);
    if (result.rule === null) missed += 1;
    const file = mutant.file.replace(/^src\//, '');
    process.stdout.write(`| ${mutant.name} | ${file} | ${result.rule ?? '**not caught**'} | ${result.lives} |\n`);
  }
  process.stdout.write(`\n${chosen.length - missed} of ${chosen.length} mutants caught within ${lives} lives\n`);
  return missed === 0 ? 0 : 1;
}

async function hunt(mutant, lives, snapshot) {
  const build = compileSimulator(mutant, snapshot);
  try {
    const script = `import(${JSON.stringify(pathToFileURL(build.cli).href)}).then(({ main }) => main(['--scenarios', '--runs', '${lives}', '--json'])).then((status) => { process.exitCode = status; });`;
    const { status, output, spun } = await child(script);
    if (spun) return { rule: 'the run does not end', lives: '-' };
    const line = output.trim().split('\n').at(-1) ?? '';
    if (!line.startsWith('{')) return { rule: `the run dies (${status})`, lives: '-' };
    const result = JSON.parse(line);
    return { rule: result.violation?.rule ?? null, lives: result.lives };
  } finally {
    build.remove();
  }
}

function child(script) {
  return new Promise((resolve, reject) => {
    const limited = `ulimit -t ${LIMIT_S}; exec "$0" "$@"`;
    const run = spawn('sh', ['-c', limited, process.execPath, '--input-type=module', '-e', script], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let output = '';
    run.stdout.on('data', (data) => {
      output += data;
    });
    run.stderr.resume();
    run.on('error', reject);
    run.on('close', (status, signal) =>
      resolve({ status, output, spun: signal === 'SIGXCPU' || signal === 'SIGKILL' }),
    );
  });
}
