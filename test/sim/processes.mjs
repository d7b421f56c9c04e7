// The simulator in processes of its own, several at once.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { pathToFileURL } from 'node:url';

/**
 * For V8, in every process that lives requests. A run throws its cluster away after some tens of milliseconds: with room for several of them
 * most is dead when the young generation is looked at. What is left is too little for helper threads: waking them costs a tenth of the
 * processor time of a long series. Of a short one the optimizing compiler takes a third, most of it for what it inlines: with a fifth of
 * what it may by default it takes little more than half as long, and what it makes is as fast. Nothing is to be made among what is old because
 * much of its kind was alive when somebody looked, in the middle of a run: it would hold its cluster until the whole heap is looked at.
 */
export const V8_OPTIONS = [
  '--min-semi-space-size=32',
  '--max-semi-space-size=32',
  '--single-threaded-gc',
  '--max-inlined-bytecode-size-cumulative=200',
  '--no-allocation-site-pretenuring',
];

/** `work` on every item, at most `jobs` at once; `onResult` hears the results in the order of the items. */
export async function eachOf(items, jobs, work, onResult) {
  const results = [];
  let [next, told] = [0, 0];
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      results[index] = await work(items[index], index);
      for (; results[told] !== undefined; told++) onResult(items[told], results[told]);
    }
  };
  await Promise.all(Array.from({ length: Math.min(jobs, items.length) }, worker));
}

/**
 * The command line of a build, in a process that may use so much processor time: on a busy machine one that only waits for its turn must not
 * pass for one that hangs.
 * @returns the exit status, what it wrote to stdout, and whether the limit ended it
 */
export function runLimited(cli, args, limitS) {
  return new Promise((resolve, reject) => {
    const limited = `ulimit -t ${limitS}; exec "$0" "$@"`;
    const run = spawn('sh', ['-c', limited, process.execPath, ...evaluate(cli, args)], {
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

/** The command line of a build, talking to whoever runs this one. @returns the exit status */
export async function runHere(cli, args) {
  const run = spawn(process.execPath, evaluate(cli, args), { stdio: 'inherit' });
  const [status] = await once(run, 'close');
  return status ?? 1;
}

function evaluate(cli, args) {
  const call = `main(${JSON.stringify(args)}).then((status) => { process.exitCode = status; })`;
  const script = `import(${JSON.stringify(pathToFileURL(cli).href)}).then(({ main }) => ${call});`;
  return [...V8_OPTIONS, '--input-type=module', '-e', script];
}
