/** What may go on in one turn of the event loop before the rest is left to the next one. */
const TURN_MS = 0.5;

/** Of this thread: those who yielded, in order. There is one immediate for each of them. */
const waiting: (() => void)[] = [];
let startsTurn = true;
let turnStartedAtMs = 0;

/**
 * Resolves after pending I/O was served.
 * Why one line for a whole thread: Node runs every immediate of a turn before it looks at timers and sockets again, so that the portions of
 *   all who yielded (executors, messengers, agents) would add up. Here those whose place in the line comes up too late in the turn go on in
 *   the next one.
 * Ordering: first come, first served; the first of a turn always goes on.
 */
export function nextLoopTurn(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    arm();
  });
}

function arm(): void {
  if (!startsTurn) {
    setImmediate(resumeNext);
    return;
  }
  // Immediates run in their order: this one comes before the others of its turn.
  startsTurn = false;
  setImmediate(openTurn);
}

function openTurn(): void {
  startsTurn = true;
  turnStartedAtMs = performance.now();
  // Whatever the clock says meanwhile.
  waiting.shift()?.();
}

function resumeNext(): void {
  if (performance.now() - turnStartedAtMs > TURN_MS) arm();
  else waiting.shift()?.();
}
