import type { Event, Observer } from 'zeromq';

/**
 * Hands on every event of a socket until the socket is gone. Read to the end even when nobody listens any more: ZeroMQ's threads wait for
 * the reader of a monitor.
 */
export async function readMonitor(monitor: Observer, onEvent: (event: Event) => void): Promise<void> {
  while (!monitor.closed) {
    let event: Event | undefined;
    try {
      // Resolves with undefined when the monitor is closed with a receive under way, whatever its type says.
      event = await monitor.receive();
    } catch (error) {
      if (monitor.closed) return;
      // A wake-up without an event. Anything else is unexpected, and without a monitor a refused peer would go unnoticed.
      if ((error as { code?: unknown }).code === 'EAGAIN') continue;
      throw error;
    }
    if (event === undefined || event.type === 'end') return;
    onEvent(event);
  }
}
