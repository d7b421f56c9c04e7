import type { Clock } from '../clock.js';
import type { EventSink } from './executor-events.js';
import type { Entry } from './request-table.js';

/** Role: appends tokens that go to the user and says so. */
export class TokenDelivery {
  readonly #clock: Clock;
  readonly #events: EventSink;

  constructor(clock: Clock, events: EventSink) {
    this.#clock = clock;
    this.#events = events;
  }

  deliver(entry: Entry, token: number): void {
    const { request } = entry;
    const index = request.outputTokens.push(token) - 1;
    const atMs = this.#clock.now();
    if (index === 0) this.#events.emit(entry.events, 'onFirstToken', request, token, atMs);
    this.#events.emit(entry.events, 'onToken', request, token, index, atMs);
  }
}
