/** As long as the agent's own thread looks for a note that was announced, `kAwake` of native/transport/note_lane.h. */
const AWAKE_MS = 2;

/**
 * Role: keeps the event loop turning while a note is expected, so that it is read when it comes and not when a sleeping thread has woken up.
 * Why: waking up costs as much as all that is done with a note. Other work has its turns between.
 * Bound: `AWAKE_MS` each time; how often is the agent's thread's to say, at most a tenth of the time.
 */
export class NoteWatch {
  #until: number | null = null;

  begin(): void {
    const isTurning = this.#until !== null;
    this.#until = performance.now() + AWAKE_MS;
    if (!isTurning) this.#turn();
  }

  end(): void {
    this.#until = null;
  }

  #turn(): void {
    setImmediate(() => {
      if (this.#until === null) return;
      if (performance.now() < this.#until) this.#turn();
      else this.#until = null;
    });
  }
}
