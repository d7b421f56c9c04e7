import type { Mutant } from './mutant.js';

const FORWARD = 'src/executor/forward-stage.ts';
const ENDINGS = 'src/executor/request-endings.ts';
const SCHEDULER = 'src/executor/scheduler.ts';

/** Steps that overlap. That slices wait for the step before theirs is seen by test/unit/executor/overlap.test.ts: here its end is always read in time. */
export const EXECUTOR_MUTANTS: readonly Mutant[] = [
  {
    name: 'blocks are given up while a step still writes them',
    file: ENDINGS,
    find: 'if (entry.stepsInFlight === 0) this.release(entry);',
    replace: 'this.release(entry);',
  },
  {
    name: 'content on top of a failed chunk is reused',
    file: FORWARD,
    find: 'if (!entry.hasLostContent) this.#markComputed(work);',
    replace: 'this.#markComputed(work);',
  },
  {
    name: 'a decode step forgets the token that is on its way',
    file: SCHEDULER,
    find: 'outputTokens.length + tokensInFlight - 1',
    replace: 'outputTokens.length - 1',
  },
];
