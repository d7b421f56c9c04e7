import { type Clock, SystemClock } from '../../../clock.js';
import { TransferTimeoutError } from '../../../errors.js';
import type { StepSchedule } from '../../../executor/executor-options.js';
import { heapInUse } from '../heap-use.js';
import { ExecutorLoad } from './executor-load.js';
import { LiveSessions } from './live-sessions.js';
import { type LoopDelay, measureLoopDelay } from './loop-delay.js';
import { CHUNK_TOKENS, SessionServer } from './session-server.js';
import { TurnTimer, type TurnTimes } from './turn-timer.js';

/** Requests that are opened in one turn while a row is set up. */
const WAVE = 200;
/** Pages of requests that end while their successors have started. */
const SPARE_REQUESTS = 1000;
const SETTLE_LIMIT_MS = 60_000;
/** How often the load is brought up to its rate. */
const PACE_MS = 5;
/** Slices that were posted with the last wave arrive. */
const QUIET_MS = 300;
const WARM_UP_MS = 1000;
/** The heap of fewer drowns in what else comes and goes. */
const FEWEST_WEIGHED = 1000;

export interface SessionsRow {
  /**
   * `nothing`: turns of an event loop that does nothing; `sessions`: requests in the middle of their transfer; `executor`: requests that go
   * through two executors as fast as they can, with a model that takes no time; `executor-overlap`: the same with the overlap schedule.
   */
  readonly variant: 'nothing' | 'sessions' | 'executor' | 'executor-overlap';
  /** Requests that are live at once. Each has two sessions, one on either side, in the same event loop. */
  readonly sessions: number;
  /** Requests that ended in the measured time. */
  readonly requests: number;
  readonly requestsPerSecond: number;
  readonly failed: number;
  readonly lost: number;
  readonly loopDelayMs: LoopDelay;
  readonly turns: TurnTimes;
  /** The JavaScript heap of one session of either side, without its request and without the cache manager's books; null for too few. */
  readonly heapBytesPerSession: number | null;
  /** CPU time of the whole process (native threads too) over the measured time. */
  readonly cpuShare: number;
}

/** What the machine alone does to a busy loop: a virtual one may stand still for longer than any of its processes works. */
export async function measureNothing(durationMs: number): Promise<SessionsRow> {
  let isOn = true;
  const turn = (): void => {
    if (isOn) setImmediate(turn);
  };
  turn();
  try {
    const measured = await measureLoad(new SystemClock(), durationMs, { completed: 0 }, () => 0);
    return { variant: 'nothing', sessions: 0, ...measured, failed: 0, lost: 0, heapBytesPerSession: null };
  } finally {
    isOn = false;
  }
}

export async function measureSessions(count: number, rate: number, durationMs: number): Promise<SessionsRow> {
  return withPair(count + SPARE_REQUESTS, async (context, generation) => {
    const sessions = new LiveSessions(context, generation);
    try {
      const settle = async (ended: boolean, what: string): Promise<void> => {
        if (!(await sessions.settle(ended, SETTLE_LIMIT_MS)))
          throw new TransferTimeoutError(`${what} took more than ${SETTLE_LIMIT_MS} ms`, { drained: false });
      };
      // The first requests bring the peers together and the code into shape.
      for (const live of sessions.prepare(WAVE)) sessions.open(live);
      await settle(false, 'opening the first sessions');
      sessions.finishOldest(WAVE);
      await settle(true, 'ending the first sessions');

      const prepared = sessions.prepare(count);
      const heapBefore = heapInUse();
      for (let at = 0; at < count; at += WAVE) {
        for (const live of prepared.slice(at, at + WAVE)) sessions.open(live);
        await settle(false, 'opening the sessions');
      }
      await pause(context, QUIET_MS);
      const heapBytes = heapInUse() - heapBefore;
      const heapBytesPerSession = count < FEWEST_WEIGHED ? null : heapBytes / (2 * count);

      const measured = await measureLoad(context.clock, durationMs, sessions, (elapsedMs, asked) => {
        const due = Math.floor((elapsedMs * rate) / 1000);
        return asked + sessions.replaceOldest(due - asked);
      });
      // Those that are left, in parts that do not queue up.
      do await settle(true, 'ending the sessions');
      while (sessions.finishOldest(WAVE) > 0);
      const { failed, started, completed } = sessions;
      const lost = started - completed - failed;
      return { variant: 'sessions', sessions: count, ...measured, failed, lost, heapBytesPerSession };
    } finally {
      sessions.detach();
    }
  });
}

export async function measureExecutor(
  concurrency: number,
  durationMs: number,
  schedule: StepSchedule,
): Promise<SessionsRow> {
  // A request's pages are free once its transfer has drained, and the next may start before.
  return withPair(4 * concurrency, async (context, generation) => {
    // What the rows before left is collected here, and not where turns are measured.
    heapInUse();
    const load = new ExecutorLoad(context, generation, { chunkTokens: CHUNK_TOKENS, concurrency, schedule });
    load.start(concurrency);
    await pause(context, WARM_UP_MS);
    const measured = await measureLoad(context.clock, durationMs, load, () => 0);
    const lost = await load.close(SETTLE_LIMIT_MS);
    return {
      variant: schedule === 'plain' ? 'executor' : 'executor-overlap',
      sessions: concurrency,
      ...measured,
      failed: load.failed,
      lost,
      heapBytesPerSession: null,
    };
  });
}

type Measured = Pick<SessionsRow, 'requests' | 'requestsPerSecond' | 'loopDelayMs' | 'turns' | 'cpuShare'>;

/** @param pace called every few ms with the time that has passed and what it returned before: how many requests it has ended so far */
async function measureLoad(
  clock: Clock,
  durationMs: number,
  load: { readonly completed: number },
  pace: (elapsedMs: number, asked: number) => number,
): Promise<Measured> {
  const completedBefore = load.completed;
  const cpuBefore = process.cpuUsage();
  const startedAtMs = clock.now();
  let elapsedMs = 0;
  const timer = new TurnTimer();
  const loopDelayMs = await measureLoopDelay(async () => {
    let asked = 0;
    while (elapsedMs < durationMs) {
      await new Promise<void>((resolve) => clock.setTimer(PACE_MS, resolve, { keepAlive: true }));
      elapsedMs = clock.now() - startedAtMs;
      asked = pace(elapsedMs, asked);
    }
  });
  const turns = timer.stop();
  const { user, system } = process.cpuUsage(cpuBefore);
  const requests = load.completed - completedBefore;
  return {
    requests,
    requestsPerSecond: (requests * 1000) / elapsedMs,
    loopDelayMs,
    turns,
    cpuShare: (user + system) / 1000 / elapsedMs,
  };
}

async function withPair<T>(
  requests: number,
  use: (context: SessionServer, generation: SessionServer) => Promise<T>,
): Promise<T> {
  const context = await SessionServer.open('context', requests);
  try {
    const generation = await SessionServer.open('generation', requests);
    try {
      return await use(context, generation);
    } finally {
      await generation.transceiver.close();
    }
  } finally {
    await context.transceiver.close();
  }
}

function pause({ clock }: SessionServer, durationMs: number): Promise<void> {
  return new Promise((resolve) => clock.setTimer(durationMs, resolve, { keepAlive: true }));
}
