import type { Clock, Timer } from '../../clock.js';

export interface EventStreamOptions {
  readonly clock: Clock;
  /** The next event as text of the `text/event-stream` format; null at the end. Never rejects. */
  readonly next: () => Promise<string | null>;
  /** Nobody reads any more, before the end. */
  readonly onGone: () => void;
  /** The reader took nothing for this long. */
  readonly stallLimitMs: number;
  readonly onStalled: () => void;
}

/** One event of server-sent events. JSON has no line breaks of its own. */
export function eventOf(data: unknown): string {
  return `data: ${typeof data === 'string' ? data : JSON.stringify(data)}\n\n`;
}

/**
 * A body of server-sent events that is made as it is read: nothing is asked for before the reader has taken what there was, so that a slow
 * reader holds one event in memory and no more.
 */
export function eventStream(options: EventStreamOptions): ReadableStream<Uint8Array> {
  const { clock, next, onGone, stallLimitMs, onStalled } = options;
  const encoder = new TextEncoder();
  let stall: Timer | null = null;
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        stall?.cancel();
        const event = await next();
        if (event === null) {
          controller.close();
          return;
        }
        controller.enqueue(encoder.encode(event));
        stall = clock.setTimer(stallLimitMs, onStalled);
      },
      cancel() {
        stall?.cancel();
        onGone();
      },
    },
    { highWaterMark: 0 },
  );
}
