// `npm run sim`: compiles the sources and the simulator once (types are only stripped; Node 20 cannot) and runs the command line.
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { compileSimulator } from './compile.mjs';
import { runMutants } from './mutants.mjs';

const args = process.argv.slice(2);
if (args.includes('--mutants')) {
  const { values } = parseArgs({
    args,
    options: {
      mutants: { type: 'boolean' },
      runs: { type: 'string', default: '20000' },
      only: { type: 'string' },
    },
  });
  process.exitCode = await runMutants({ lives: Number(values.runs), only: values.only });
} else {
  const { main } = await import(pathToFileURL(compileSimulator().cli).href);
  process.exitCode = await main(args);
}
