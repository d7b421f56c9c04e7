import { closeSync, openSync } from 'node:fs';
import { devNull } from 'node:os';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Dealer, Event, Observer, Router } from 'zeromq';
import { isWakeUp } from './zeromq-wake-up.js';

/** Events read in a row before other work gets its turn. */
const EVENTS_A_TURN = 32;

/**
 * Monitors that have not ended. A closed socket holds its own no more, and one that the collector takes before ZeroMQ's reaper thread has said
 * `end` to it stops that thread for ever: from then on no socket of this JS thread is destroyed, and no port is freed.
 */
const unended = new Set<Observer>();

/** A monitor takes two; the rest is for what other threads open in the same moment. */
const FREE_DESCRIPTORS = 8;

/** What a socket does, as somebody is told of it. */
export interface SocketMonitor {
  /** After the socket was closed: ZeroMQ's threads have let go of it. Keeps the process alive until then. */
  readonly ended: Promise<void>;
  /** For a thread whose event loop has ended, and that nobody waits for: not for ordinary use, for ZeroMQ's threads wait for who reads. */
  closeAtExit(): void;
}

/**
 * Hands on every event of a socket until the socket is gone. The only way to a monitor: it is read to its end whatever becomes of its socket, its
 * owner or its listener, for ZeroMQ's threads wait for the reader of a monitor. Who wants to hear no more ignores what comes.
 * @param onEvent what it throws is its owner's bug: it surfaces as an uncaught exception, and the reading goes on
 * @throws when descriptors have run out
 */
export function watchSocket(socket: Dealer | Router, onEvent: (event: Event) => void): SocketMonitor {
  requireDescriptors();
  const monitor = socket.events;
  unended.add(monitor);
  return { ended: readToEnd(monitor, onEvent), closeAtExit: () => monitor.close() };
}

/** A monitor of which only the first end could be made has no reader either, and its socket could never be closed: not begun where it might fail. */
function requireDescriptors(): void {
  const taken: number[] = [];
  try {
    while (taken.length < FREE_DESCRIPTORS) taken.push(openSync(devNull, 'r'));
  } finally {
    for (const descriptor of taken) closeSync(descriptor);
  }
}

/** Not without a pause: a listener that is out of descriptors fails, and says so, as fast as it is read. */
async function readToEnd(monitor: Observer, onEvent: (event: Event) => void): Promise<void> {
  for (let read = 1; !monitor.closed; read += 1) {
    if (read % EVENTS_A_TURN === 0) await nextTurn();
    let event: Event | undefined;
    try {
      // Resolves with undefined when the monitor is closed with a receive under way, whatever its type says.
      event = await monitor.receive();
    } catch (error) {
      if (monitor.closed) break;
      // A wake-up without an event. Anything else is unexpected, and without a monitor a lost or refused peer would go unnoticed.
      if (isWakeUp(error)) continue;
      throw error;
    }
    if (event === undefined || event.type === 'end') break;
    tell(onEvent, event);
  }
  unended.delete(monitor);
}

function tell(onEvent: (event: Event) => void, event: Event): void {
  try {
    onEvent(event);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
