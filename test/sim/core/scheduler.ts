import type { Clock, Timer } from '../../../src/clock.js';
import { drainMicrotasks } from './microtasks.js';

/** Hardware acts before software that wakes at the same moment. */
export type Priority = 'hardware' | 'software';

/** More than any run has events: whatever is hardware comes before all software. Small, so that an order is never a number on the heap. */
const HARDWARE_FIRST = 0x4000_0000;

/** Something that will happen. */
export class SimEvent implements Timer {
  readonly order: number;
  readonly owner: SimProcess | null;
  readonly run: () => void;
  readonly isTimer: boolean;
  cancelled = false;

  constructor(order: number, owner: SimProcess | null, run: () => void, isTimer: boolean) {
    this.order = order;
    this.owner = owner;
    this.run = run;
    this.isTimer = isTimer;
  }

  cancel(): void {
    if (this.cancelled) return;
    this.cancelled = true;
    if (this.isTimer && this.owner !== null) this.owner.pendingTimers -= 1;
  }
}

/** One incarnation of one simulated process: its clock, and whether it still runs. */
export class SimProcess implements Clock {
  readonly name: string;
  readonly #scheduler: Scheduler;
  state: 'running' | 'stopped' | 'dead' = 'running';
  /** When a stopped process goes on. */
  resumesAt = 0;
  offsetMs = 0;
  pendingTimers = 0;
  /** Time this process was stopped, or its clock jumped, in all: its own deadlines may come this much late. */
  lostMs = 0;

  constructor(name: string, scheduler: Scheduler, offsetMs: number) {
    this.name = name;
    this.#scheduler = scheduler;
    this.offsetMs = offsetMs;
  }

  now(): number {
    return this.#scheduler.now + this.offsetMs;
  }

  setTimer(delayMs: number, callback: () => void): Timer {
    if (!(delayMs >= 0)) throw new RangeError(`delayMs must be >= 0, got ${delayMs}`);
    this.pendingTimers += 1;
    return this.#scheduler.timer(delayMs, this, callback);
  }

  nextTurn(): Promise<void> {
    return new Promise((resolve) => {
      this.#scheduler.at(TURN_MS, this, resolve);
    });
  }
}

/** A turn takes time, so that a loop that spins moves the clock and is seen. */
const TURN_MS = 0.02;

/**
 * Role: virtual time, and the one order in which everything happens.
 * Ordering: by time, then hardware before software, then by age. After each event every promise callback runs before the next event.
 */
export class Scheduler {
  now = 0;
  readonly #heap: SimEvent[] = [];
  /** When each event of the heap happens. */
  readonly #times: number[] = [];
  #nextOrder = 0;
  #onThrow: (error: unknown, owner: SimProcess | null) => void = (error) => {
    throw error;
  };

  /** What an event lets escape. */
  onThrow(listener: (error: unknown, owner: SimProcess | null) => void): void {
    this.#onThrow = listener;
  }

  at(delayMs: number, owner: SimProcess | null, run: () => void, priority: Priority = 'software'): SimEvent {
    return this.#push(delayMs, owner, run, priority, false);
  }

  timer(delayMs: number, owner: SimProcess, run: () => void): SimEvent {
    return this.#push(delayMs, owner, run, 'software', true);
  }

  get nextAt(): number | null {
    return this.#times[0] ?? null;
  }

  /** The clock of a process leaps: what its timers wait for comes earlier by as much. */
  jump(process: SimProcess, ms: number): void {
    process.offsetMs += ms;
    process.lostMs += ms;
    const [events, times] = [this.#heap.splice(0), this.#times.splice(0)];
    for (const [index, event] of events.entries()) {
      const at = times[index] as number;
      this.#insert(event, event.owner === process && event.isTimer ? Math.max(this.now, at - ms) : at);
    }
  }

  stop(process: SimProcess, ms: number): void {
    if (process.state !== 'running') return;
    process.state = 'stopped';
    process.resumesAt = this.now + ms;
    process.lostMs += ms;
  }

  /** Runs the next event. False when there is none, or it lies beyond `untilMs`. */
  step(untilMs: number): boolean {
    const event = this.#heap[0];
    const at = this.#times[0];
    if (event === undefined || at === undefined || at > untilMs) return false;
    this.#pop();
    if (event.cancelled || event.owner?.state === 'dead') return true;
    if (event.owner?.state === 'stopped') {
      // What waited happens when it goes on, in the old order: what its hardware had queued first.
      if (at < event.owner.resumesAt) {
        this.#insert(event, event.owner.resumesAt);
        return true;
      }
      event.owner.state = 'running';
    }
    if (at > this.now) this.now = at;
    if (event.isTimer) event.cancel();
    try {
      event.run();
      drainMicrotasks();
    } catch (error) {
      this.#onThrow(error, event.owner);
    }
    return true;
  }

  #push(delayMs: number, owner: SimProcess | null, run: () => void, priority: Priority, isTimer: boolean): SimEvent {
    const order = this.#nextOrder++ - (priority === 'hardware' ? HARDWARE_FIRST : 0);
    const event = new SimEvent(order, owner, run, isTimer);
    this.#insert(event, this.now + delayMs);
    return event;
  }

  #insert(event: SimEvent, at: number): void {
    const heap = this.#heap;
    const times = this.#times;
    let index = heap.push(event) - 1;
    times.push(at);
    while (index > 0) {
      const parent = (index - 1) >> 1;
      const above = times[parent] as number;
      if (above < at || (above === at && (heap[parent] as SimEvent).order < event.order)) break;
      heap[index] = heap[parent] as SimEvent;
      times[index] = above;
      index = parent;
    }
    heap[index] = event;
    times[index] = at;
  }

  #pop(): void {
    const heap = this.#heap;
    const times = this.#times;
    const last = heap.pop() as SimEvent;
    const at = times.pop() as number;
    const { length } = heap;
    if (length === 0) return;
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= length) break;
      if (child + 1 < length && this.#isBefore(child + 1, child)) child += 1;
      const below = times[child] as number;
      if (below > at || (below === at && (heap[child] as SimEvent).order > last.order)) break;
      heap[index] = heap[child] as SimEvent;
      times[index] = below;
      index = child;
    }
    heap[index] = last;
    times[index] = at;
  }

  #isBefore(a: number, b: number): boolean {
    const atA = this.#times[a] as number;
    const atB = this.#times[b] as number;
    return atA < atB || (atA === atB && (this.#heap[a] as SimEvent).order < (this.#heap[b] as SimEvent).order);
  }
}
