import { afterAll, beforeAll } from 'vitest';
import { Journal } from '../sim/core/journal.js';
import { Scheduler, SimProcess } from '../sim/core/scheduler.js';
import { SimFabric } from '../sim/parts/sim-fabric.js';
import { notesSuite } from './notes-suite.js';

/** Virtual time that passes in each turn of the event loop. */
const MS_PER_TURN = 1;

const scheduler = new Scheduler();
const fabric = new SimFabric(scheduler, new Journal(false, () => scheduler.now), 1);
// The simulator loses, doubles and delays notes, as their contract allows: here each comes once, as it does on one machine.
fabric.setFaults({
  fateOf: (_, random) => ({ kind: 'transfer', durationMs: random.real(0.05, 2), tailMs: 0 }),
  noteFateOf: (random) => [random.real(0.002, 0.08)],
});

let isOver = false;
let opened = 0;

function passTime(): void {
  const until = scheduler.now + MS_PER_TURN;
  while (scheduler.step(until));
  scheduler.now = until;
  if (!isOver) setImmediate(passTime);
}

beforeAll(() => passTime());
afterAll(() => {
  isOver = true;
});

// The lane of the simulator holds any number of notes: how full a socket gets is the real agents' to show. Where there is no way, the
// simulated one says so by chance, in every run of `npm run sim`.
notesSuite(
  'sim',
  (name) => {
    const agent = fabric.createAgent(`${name}-${opened++}`, new SimProcess(name, scheduler, 0));
    agent.carriesNotes = true;
    return Promise.resolve(agent);
  },
  { bounded: false },
);
