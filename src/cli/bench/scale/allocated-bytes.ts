import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { percentilesOf } from '../statistics.js';

/** Code that is not optimized yet allocates numbers that optimized code keeps in registers. */
const WARM_UP_ROUNDS = 300;
/** Few enough that no garbage collection happens while they are counted. */
const COUNTED_CALLS = 16;
const TRIES = 41;

/**
 * What one call of each task allocates, on the heap and in array buffers: the median of many tries, each after a garbage collection and
 * less what an empty try allocates. The tasks take turns, so that whatever else the process does meets all of them alike.
 */
export function allocatedBytes(tasks: readonly (() => unknown)[], rounds = TRIES): readonly number[] {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = (): number => {
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  const grown = (task: () => unknown): number => {
    collect();
    const before = used();
    for (let i = 0; i < COUNTED_CALLS; i++) task();
    return used() - before;
  };
  for (let round = 0; round < WARM_UP_ROUNDS; round++) for (const task of tasks) task();
  const tries = tasks.map((): number[] => []);
  for (let round = 0; round < rounds; round++) {
    const empty = grown(() => null);
    tasks.forEach((task, index) => {
      tries[index]?.push((grown(task) - empty) / COUNTED_CALLS);
    });
  }
  return tries.map((of) => Math.max(0, Math.round(percentilesOf(of)?.p50 ?? 0)));
}
