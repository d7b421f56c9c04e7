import type { Clock, Timer } from '../../../src/clock.js';
import { drainMicrotasks } from './microtasks.js';

/** Hardware acts before software that wakes at the same moment. */
export type Priority = 'hardware' | 'software';

/** Something that will happen. */
export class SimEvent implements Timer {
  at: number;
  readonly order: number;
  readonly owner: SimProcess | null;
  readonly run: () => void;
  readonly isTimer: boolean;
  cancelled = false;

  constructor(at: number, order: number, owner: SimProcess | null, run: () => void, isTimer: boolean) {
    this.at = at;
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
    return this.#heap[0]?.at ?? null;
  }

  /** The clock of a process leaps: what its timers wait for comes earlier by as much. */
  jump(process: SimProcess, ms: number): void {
    process.offsetMs += ms;
    process.lostMs += ms;
    const events = this.#heap.splice(0);
    for (const event of events) {
      if (event.owner === process && event.isTimer) event.at = Math.max(this.now, event.at - ms);
      this.#insert(event);
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
    if (event === undefined || event.at > untilMs) return false;
    this.#pop();
    if (event.cancelled || event.owner?.state === 'dead') return true;
    if (event.owner?.state === 'stopped') {
      // What waited happens when it goes on, in the old order: what its hardware had queued first.
      if (event.at < event.owner.resumesAt) {
        event.at = event.owner.resumesAt;
        this.#insert(event);
        return true;
      }
      event.owner.state = 'running';
    }
    if (event.at > this.now) this.now = event.at;
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
    const order = this.#nextOrder++ + (priority === 'hardware' ? -1e12 : 0);
    const event = new SimEvent(this.now + delayMs, order, owner, run, isTimer);
    this.#insert(event);
    return event;
  }

  #insert(event: SimEvent): void {
    const heap = this.#heap;
    let index = heap.push(event) - 1;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      const above = heap[parent] as SimEvent;
      if (!isBefore(event, above)) break;
      heap[index] = above;
      index = parent;
    }
    heap[index] = event;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop() as SimEvent;
    if (heap.length === 0) return;
    let index = 0;
    for (;;) {
      let child = 2 * index + 1;
      if (child >= heap.length) break;
      const right = child + 1;
      if (right < heap.length && isBefore(heap[right] as SimEvent, heap[child] as SimEvent)) child = right;
      const below = heap[child] as SimEvent;
      if (!isBefore(below, last)) break;
      heap[index] = below;
      index = child;
    }
    heap[index] = last;
  }
}

function isBefore(a: SimEvent, b: SimEvent): boolean {
  return a.at < b.at || (a.at === b.at && a.order < b.order);
}
