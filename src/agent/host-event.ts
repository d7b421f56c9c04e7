import type { NativeAgent } from './native.js';
import type { ReadyEvent } from './transfer-agent.js';

/** An event that JS settles. Valid for submissions of the agent that made it. */
export class HostEvent implements ReadyEvent {
  readonly handle: number;
  readonly #native: NativeAgent;

  constructor(native: NativeAgent) {
    this.#native = native;
    this.handle = native.createEvent();
  }

  belongsTo(native: NativeAgent): boolean {
    return this.#native === native;
  }

  signal(): void {
    this.#native.signalEvent(this.handle);
  }

  fail(message: string): void {
    this.#native.failEvent(this.handle, message);
  }
}
