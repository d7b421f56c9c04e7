// `npm run test:tiny`: many cases of tiny-equality, by several processes at once.
//
//   npm run test:tiny -- --cases 10000 --from 1 --jobs 32
//   npm run test:tiny -- --pack FILE.tar.xz      everything it needs, for a machine that has cores and nothing else;
//                                                there: tar xf FILE && kv-transceiver-tiny/tiny --jobs 32
import { fork } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { openBuild } from './build.mjs';

/** Cases that a process gets at a time: under a second of work, so that all end together. */
const CASES_AT_ONCE = 10;
const FAILURES_SHOWN = 10;

const OPTIONS = {
  cases: { type: 'string', default: '10000' },
  from: { type: 'string', default: '1' },
  jobs: { type: 'string', default: String(availableParallelism()) },
  pack: { type: 'string' },
};

/** @returns the exit status: 0 = every case is equal, and together they met everything */
async function run(args) {
  const { values } = parseArgs({ args, options: OPTIONS });
  if (values.pack !== undefined) return (await import('./pack.mjs')).packCases(values.pack);
  const [cases, from, jobs] = ['cases', 'from', 'jobs'].map((name) => count(name, values));
  const { worker, checks } = await openBuild();
  const { JUDGED_CASES, Met } = await import(pathToFileURL(checks).href);
  const startedAt = process.hrtime.bigint();
  const met = new Met();
  const failures = [];
  let [next, told, done, cpuUs] = [from, 0, 0, 0];
  const end = from + cases;
  const work = () =>
    new Promise((resolve, reject) => {
      const child = fork(worker);
      let [size, usedUs, isIdle] = [0, 0, false];
      const more = () => {
        isIdle = next >= end;
        if (isIdle) {
          child.disconnect();
          return;
        }
        const to = Math.min(next + CASES_AT_ONCE, end);
        child.send({ from: next, to });
        size = to - next;
        next = to;
      };
      child.on('message', (report) => {
        done += size;
        usedUs = report.cpuUs;
        met.addAll(report.met);
        failures.push(...report.failures);
        if (done - told >= cases / 10) {
          told = done;
          process.stderr.write(`${done} of ${cases} cases\n`);
        }
        more();
      });
      child.on('error', reject);
      child.on('exit', (status, signal) => {
        cpuUs += usedUs;
        if (status === 0 && isIdle) resolve();
        else reject(new Error(`a process ended with ${status ?? signal} within ${size} cases before ${next}`));
      });
      more();
    });
  await Promise.all(Array.from({ length: Math.min(jobs, Math.ceil(cases / CASES_AT_ONCE)) }, work));
  const wallS = Number(process.hrtime.bigint() - startedAt) / 1e9;
  const say = (line) => process.stdout.write(`${line}\n`);
  say(
    `${done} cases, seeds ${from} to ${end - 1}, ${met.counts.tokens ?? 0} tokens; ${jobs} processes, ` +
      `${(cpuUs / 1e6).toFixed(1)} s of processor time, ${wallS.toFixed(1)} s in all`,
  );
  failures.sort((a, b) => a.seed - b.seed);
  for (const { text } of failures.slice(0, FAILURES_SHOWN)) say(text);
  const missed = cases >= JUDGED_CASES ? met.missed : [];
  if (missed.length > 0) say(`met too rarely: ${missed.join(', ')}`);
  say(failures.length === 0 ? 'all equal to one server' : `${failures.length} cases failed`);
  return failures.length === 0 && missed.length === 0 && done === cases ? 0 : 1;
}

function count(option, values) {
  const value = Number(values[option]);
  if (!Number.isSafeInteger(value) || value < 1)
    throw new RangeError(`--${option} is ${values[option]}; it must be a whole number from 1`);
  return value;
}

process.exitCode = await run(process.argv.slice(2));
