import { closeSync, openSync, readSync } from 'node:fs';
import { type PerformanceEntry, PerformanceObserver, performance } from 'node:perf_hooks';
import { type Percentiles, percentilesOf, sum } from '../statistics.js';

/** A turn of less is a loop that has nothing to do: it is looked at again after a while, so that measuring keeps no idle loop awake. */
const IDLE_TURN_MS = 0.1;
const LOOK_AGAIN_MS = 1;
/** Turns that are kept with their place, to see whether a collection lay in them. */
const LONG_TURN_MS = 1;

/** How long single turns of the event loop were: from one look at the immediates to the next, all timers and sockets in between. */
export interface TurnTimes {
  /** By the wall clock, with what others had of the core meanwhile; null when no turn was measured, as below. */
  readonly wallMs: Percentiles | null;
  /** What the JS thread had of a core in it; null where the kernel does not tell. */
  readonly cpuMs: Percentiles | null;
  /** Share of all the time in which the JS thread could have run and had no core: on a quiet machine next to nothing. Null as above. */
  readonly waitedForCoreShare: number | null;
  /**
   * Longest of the turns without a collection in them: what the loop did itself. In what the JS thread had of a core where the kernel tells, else
   * by the wall clock; 0: each that took a millisecond had one.
   */
  readonly longestOwnMs: number;
  /** Pauses of the garbage collector by the wall clock, which lie within turns; `share` of all the time. */
  readonly garbageCollection: {
    readonly count: number;
    readonly totalMs: number;
    readonly maxMs: number;
    readonly share: number;
  };
}

interface LongTurn {
  /** When the loop was last looked at before. */
  readonly beginMs: number;
  readonly endMs: number;
  readonly wallMs: number;
  readonly cpuMs: number;
}

function endOf({ startTime, duration }: PerformanceEntry): number {
  return startTime + duration;
}

interface Moment {
  readonly wallMs: number;
  readonly cpuMs: number;
  readonly waitedMs: number;
}

/**
 * Role: times every turn of a busy event loop; of an idle one those that a look now and then meets, and whatever makes such a look late.
 * Threading: the main thread of a process, whose account the kernel keeps under the process.
 */
export class TurnTimer {
  readonly #account = ThreadAccount.open();
  readonly #wallMs: number[] = [];
  readonly #cpuMs: number[] = [];
  readonly #long: LongTurn[] = [];
  readonly #pauses: PerformanceEntry[] = [];
  readonly #observer = new PerformanceObserver((list) => void this.#pauses.push(...list.getEntries()));
  #from: Moment;
  readonly #start: Moment;
  #isOn = true;

  constructor() {
    this.#observer.observe({ entryTypes: ['gc'] });
    this.#start = this.#now();
    this.#from = this.#start;
    setImmediate(this.#turned);
  }

  stop(): TurnTimes {
    this.#isOn = false;
    const end = this.#now();
    this.#pauses.push(...this.#observer.takeRecords());
    this.#observer.disconnect();
    this.#account?.close();
    const isTold = this.#account !== null;
    const durationMs = end.wallMs - this.#start.wallMs;
    const totalMs = sum(this.#pauses.map(({ duration }) => duration));
    return {
      wallMs: percentilesOf(this.#wallMs),
      cpuMs: isTold ? percentilesOf(this.#cpuMs) : null,
      waitedForCoreShare: isTold ? (end.waitedMs - this.#start.waitedMs) / durationMs : null,
      longestOwnMs: this.#longestOwnMs(isTold),
      garbageCollection: {
        count: this.#pauses.length,
        totalMs,
        maxMs: this.#pauses.reduce((most, { duration }) => Math.max(most, duration), 0),
        share: totalMs / durationMs,
      },
    };
  }

  readonly #turned = (): void => {
    if (!this.#isOn) return;
    const to = this.#now();
    const wallMs = to.wallMs - this.#from.wallMs;
    this.#note(wallMs, to);
    if (wallMs > IDLE_TURN_MS) setImmediate(this.#turned);
    else setTimeout(this.#looked, LOOK_AGAIN_MS);
  };

  /** A look that comes late was held up by the turn in which it was due. */
  readonly #looked = (): void => {
    if (!this.#isOn) return;
    const to = this.#now();
    const lateMs = to.wallMs - this.#from.wallMs - LOOK_AGAIN_MS;
    if (lateMs > IDLE_TURN_MS) this.#note(lateMs, to);
    this.#from = this.#now();
    setImmediate(this.#turned);
  };

  #note(wallMs: number, to: Moment): void {
    const cpuMs = Math.min(wallMs, to.cpuMs - this.#from.cpuMs);
    this.#wallMs.push(wallMs);
    this.#cpuMs.push(cpuMs);
    if (wallMs >= LONG_TURN_MS) this.#long.push({ beginMs: this.#from.wallMs, endMs: to.wallMs, wallMs, cpuMs });
    this.#from = to;
  }

  /** Turns and pauses are both in the order in which they came, and no two of either overlap. */
  #longestOwnMs(isTold: boolean): number {
    let [longestMs, next] = [0, 0];
    for (const { beginMs, endMs, wallMs, cpuMs } of this.#long) {
      while (next < this.#pauses.length && endOf(this.#pauses[next] as PerformanceEntry) <= beginMs) next += 1;
      const pause = this.#pauses[next];
      if (pause === undefined || pause.startTime >= endMs) longestMs = Math.max(longestMs, isTold ? cpuMs : wallMs);
    }
    return longestMs;
  }

  #now(): Moment {
    const { cpuMs, waitedMs } = this.#account?.read() ?? { cpuMs: 0, waitedMs: 0 };
    return { wallMs: performance.now(), cpuMs, waitedMs };
  }
}

/** The kernel's account of the main thread: time on a core, and time that it waited for one. */
class ThreadAccount {
  readonly #file: number;
  readonly #buffer = Buffer.alloc(96);

  static open(): ThreadAccount | null {
    try {
      return new ThreadAccount(openSync('/proc/self/schedstat', 'r'));
    } catch {
      // No such kernel or no such right: the figures are null, and say so.
      return null;
    }
  }

  private constructor(file: number) {
    this.#file = file;
  }

  read(): { readonly cpuMs: number; readonly waitedMs: number } {
    // Asking for the use of the process brings the account of the asking thread up to date; else it goes on by the tick, of up to 4 ms.
    process.cpuUsage();
    const length = readSync(this.#file, this.#buffer, 0, this.#buffer.length, 0);
    const [cpuNs = 0, waitedNs = 0] = this.#buffer.toString('latin1', 0, length).split(' ').map(Number);
    return { cpuMs: cpuNs / 1e6, waitedMs: waitedNs / 1e6 };
  }

  close(): void {
    closeSync(this.#file);
  }
}
