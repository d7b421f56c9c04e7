// `npm run sim`: compiles the sources and the simulator once (types are only stripped; Node 20 cannot) and runs the command line.
import { pathToFileURL } from 'node:url';
import { compileSimulator } from './compile.mjs';

const { main } = await import(pathToFileURL(compileSimulator().cli).href);
process.exitCode = await main(process.argv.slice(2));
