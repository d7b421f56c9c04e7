import type { Completion, SubmissionNotice } from '../../agent/transfer-agent.js';

/** Longer than any run: the timer exists only to be there. */
const KEEP_ALIVE_MS = 3_600_000;

/**
 * Hands each submission's completion to whoever waits for it. Agents do not keep the process alive; a bench that waits does.
 */
export class CompletionWaiter {
  readonly #waiting = new Map<number, (completion: Completion) => void>();
  #keepAlive: NodeJS.Timeout | null = null;

  /** Called before the submission, so that no completion can be missed. */
  expect(submission: number): Promise<Completion> {
    this.#keepAlive ??= setInterval(() => {}, KEEP_ALIVE_MS);
    return new Promise((resolve) => this.#waiting.set(submission, resolve));
  }

  accept(batch: readonly SubmissionNotice[]): void {
    for (const notice of batch) {
      if (notice.kind !== 'completion') continue;
      this.#waiting.get(notice.submission)?.(notice);
      this.#waiting.delete(notice.submission);
    }
    if (this.#waiting.size > 0 || this.#keepAlive === null) return;
    clearInterval(this.#keepAlive);
    this.#keepAlive = null;
  }
}
