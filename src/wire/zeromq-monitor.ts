import { setImmediate as nextTurn } from 'node:timers/promises';
import type { Event, Observer } from 'zeromq';
import { isWakeUp } from './zeromq-wake-up.js';

/** Events read in a row before other work gets its turn. */
const EVENTS_A_TURN = 32;

/**
 * Hands on every event of a socket until the socket is gone. Read to the end even when nobody listens any more: ZeroMQ's threads wait for
 * the reader of a monitor. Not without a pause: a listener that is out of descriptors fails, and says so, as fast as it is read.
 */
export async function readMonitor(monitor: Observer, onEvent: (event: Event) => void): Promise<void> {
  for (let read = 1; !monitor.closed; read += 1) {
    if (read % EVENTS_A_TURN === 0) await nextTurn();
    let event: Event | undefined;
    try {
      // Resolves with undefined when the monitor is closed with a receive under way, whatever its type says.
      event = await monitor.receive();
    } catch (error) {
      if (monitor.closed) return;
      // A wake-up without an event. Anything else is unexpected, and without a monitor a refused peer would go unnoticed.
      if (isWakeUp(error)) continue;
      throw error;
    }
    if (event === undefined || event.type === 'end') return;
    onEvent(event);
  }
}
