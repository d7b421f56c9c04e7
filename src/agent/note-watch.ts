/** As long as the agent's own thread looks for notes that were announced, `kAwake` of native/transport/note_lane.h. */
const AWAKE_MS = 2;

/**
 * Role: keeps the event loop turning while notes are expected, so that each is read when it comes and not when a sleeping thread has woken up.
 * Why: waking up costs as much as all that is done with a note. Other work has its turns between.
 * Bound: `AWAKE_MS` from the first, however many follow; how often is the agent's thread's to say, at most a tenth of the time.
 */
export class NoteWatch {
  #expected = 0;
  #untilMs = 0;

  get isTurning(): boolean {
    return this.#expected > 0;
  }

  begin(): void {
    this.#expected += 1;
    if (this.#expected > 1) return;
    this.#untilMs = performance.now() + AWAKE_MS;
    this.#turn();
  }

  /** One of them is here. */
  end(): void {
    if (this.#expected > 0) this.#expected -= 1;
  }

  #turn(): void {
    setImmediate(() => {
      if (performance.now() >= this.#untilMs) this.#expected = 0;
      if (this.#expected > 0) this.#turn();
    });
  }
}
