// `npm run sim`: compiles the sources and the simulator once (types are only stripped; Node 20 cannot) and runs the command line.
import { parseArgs } from 'node:util';
import { openKit } from './kit.mjs';
import { keepTable, runMutants } from './mutants.mjs';
import { runHere } from './processes.mjs';
import { runSeries } from './series.mjs';

/** @returns the exit status */
async function run(args) {
  if (args.includes('--pack')) {
    const { values } = parseArgs({ args, options: { pack: { type: 'string' } } });
    return (await import('./pack.mjs')).packSimulator(values.pack);
  }
  if (args.includes('--table')) {
    const { values } = parseArgs({ args, options: { table: { type: 'string' }, markdown: { type: 'string' } } });
    return keepTable(values.table, values.markdown);
  }
  const shortTurns = args.includes('--short-turns');
  args = args.filter((arg) => arg !== '--short-turns');
  const kit = await openKit({ shortTurns });
  if (args.includes('--mutants')) {
    if (shortTurns)
      throw new RangeError('--short-turns does not go with --mutants: each of those is a build of its own');
    const { values } = parseArgs({
      args,
      options: {
        mutants: { type: 'boolean' },
        runs: { type: 'string', default: '20000' },
        only: { type: 'string', multiple: true, default: [] },
        jobs: { type: 'string', default: '1' },
        share: { type: 'string', default: '0/1' },
        markdown: { type: 'string' },
      },
    });
    const { only, markdown } = values;
    const share = shareOf(values.share);
    return runMutants(kit, { lives: count('runs', values), jobs: count('jobs', values), only, share, markdown });
  }
  if (args.includes('--jobs')) {
    const { values } = parseArgs({
      args,
      options: {
        runs: { type: 'string', default: '20000' },
        from: { type: 'string', default: '1' },
        jobs: { type: 'string' },
        'keep-going': { type: 'boolean', default: false },
      },
    });
    const [lives, from, jobs] = ['runs', 'from', 'jobs'].map((name) => count(name, values));
    return runSeries(kit, { lives, from, jobs, keepGoing: values['keep-going'] });
  }
  return runHere(kit.cli, args);
}

function count(option, values) {
  const value = Number(values[option]);
  if (!Number.isSafeInteger(value) || value < 1)
    throw new RangeError(`--${option} is ${values[option]}; it must be a whole number from 1`);
  return value;
}

/** `2/12`: every twelfth, from the third on. */
function shareOf(text) {
  const [share, of] = text.split('/').map(Number);
  if (!Number.isSafeInteger(share) || !Number.isSafeInteger(of) || share < 0 || share >= of)
    throw new RangeError(`--share is ${text}; it must be K/N with K in [0, N)`);
  return { share, of };
}

process.exitCode = await run(process.argv.slice(2));
