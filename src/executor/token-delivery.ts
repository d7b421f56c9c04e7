import type { Clock } from '../clock.js';
import type { EventSink } from './executor-events.js';
import { hasLastToken } from './request.js';
import type { Entry } from './request-table.js';

/** Role: appends tokens that go to the user and says so, up to the last one. */
export class TokenDelivery {
  readonly #clock: Clock;
  readonly #events: EventSink;

  constructor(clock: Clock, events: EventSink) {
    this.#clock = clock;
    this.#events = events;
  }

  /** @returns true when it was the last one: `maxTokens` are there, or it stops the request */
  deliver(entry: Entry, token: number): boolean {
    const { request } = entry;
    entry.outputCount = request.outputTokens.push(token);
    const index = entry.outputCount - 1;
    const atMs = this.#clock.now();
    if (index === 0) this.#events.emit(entry.events, 'onFirstToken', request, token, atMs);
    this.#events.emit(entry.events, 'onToken', request, token, index, atMs);
    return hasLastToken(request);
  }
}
