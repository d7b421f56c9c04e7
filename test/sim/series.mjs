// `npm run sim -- --runs N --jobs N`: one series of seeds, lived by several processes, told as if by one.
import { fork } from 'node:child_process';
import { createHash } from 'node:crypto';
import { workerOf } from './kit.mjs';
import { V8_OPTIONS } from './processes.mjs';

/** Seeds that a process gets at a time: some seconds of work. */
const SEEDS_AT_ONCE = 40;

/**
 * Which seeds the series has does not depend on how many processes live it: from the first on, as many as give so many lives. What was lived
 * beyond is not counted; what broke there is told.
 * @returns the exit status: 0 = nothing broke
 */
export async function runSeries(kit, { lives, from, jobs, keepGoing }) {
  const startedAt = process.hrtime.bigint();
  const bySeed = new Map();
  const failures = [];
  let [next, outstanding, received] = [from, 0, 0];
  const isEnough = () => {
    const average = bySeed.size === 0 ? 1 : received / bySeed.size;
    return received + outstanding * average >= lives || (failures.length > 0 && !keepGoing);
  };
  let cpuUs = 0;
  const live = () =>
    new Promise((resolve, reject) => {
      const worker = fork(workerOf(kit.cli), { execArgv: V8_OPTIONS });
      let usedUs = 0;
      const more = () => {
        if (isEnough() && !(outstanding === 0 && received < lives && failures.length === 0)) {
          worker.disconnect();
          return;
        }
        worker.send({ from: next, to: next + SEEDS_AT_ONCE });
        next += SEEDS_AT_ONCE;
        outstanding += SEEDS_AT_ONCE;
      };
      worker.on('message', (report) => {
        outstanding -= SEEDS_AT_ONCE;
        usedUs = report.cpuUs;
        for (const run of report.runs) {
          bySeed.set(run.seed, run);
          received += run.lives;
          if (run.broken !== null) failures.push(run);
        }
        more();
      });
      worker.on('error', reject);
      worker.on('exit', (status, signal) => {
        cpuUs += usedUs;
        if (status === 0) resolve();
        else reject(new Error(`a process of the series ended with ${status ?? signal}`));
      });
      more();
    });
  await Promise.all(Array.from({ length: jobs }, live));
  const wallS = Number(process.hrtime.bigint() - startedAt) / 1e9;
  tell({ bySeed, from, lives, failures, jobs, wallS, cpuS: cpuUs / 1e6 });
  return failures.length === 0 ? 0 : 1;
}

function tell({ bySeed, from, lives, failures, jobs, wallS, cpuS }) {
  const say = (line) => process.stdout.write(`${line}\n`);
  const hash = createHash('sha256');
  let [seed, lived, completed, events, all] = [from, 0, 0, 0, 0];
  for (const run of bySeed.values()) all += run.lives;
  for (; lived < lives && bySeed.has(seed); seed++) {
    const run = bySeed.get(seed);
    lived += run.lives;
    completed += run.completed;
    events += run.events;
    hash.update(run.hash);
  }
  say(
    `${lived} request lives (${completed} completed), seeds ${from} to ${seed - 1}, hash of their trace hashes ${hash.digest('hex').slice(0, 16)}`,
  );
  say(
    `${jobs} processes: ${cpuS.toFixed(1)} s of processor time for ${all} lives, ${((cpuS / all) * 1000).toFixed(3)} ms a life, ` +
      `${Math.round(all / cpuS)} lives a second of one core; ${(events / lived).toFixed(0)} events a life; ${wallS.toFixed(1)} s in all`,
  );
  if (failures.length === 0) {
    say('nothing broke');
    return;
  }
  failures.sort((a, b) => a.seed - b.seed);
  for (const { seed: failed, broken } of failures.slice(0, 20)) say(`seed ${failed}: ${broken.rule}: ${broken.text}`);
  say(`${failures.length} runs broke a rule; replay: npm run sim -- --seed ${failures[0].seed}`);
}
