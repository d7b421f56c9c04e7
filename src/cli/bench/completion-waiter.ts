import type { Completion, DrainedNotice } from '../../agent/transfer-agent.js';

/** Hands each submission's completion to whoever waits for it. */
export class CompletionWaiter {
  readonly #waiting = new Map<number, (completion: Completion) => void>();

  /** Called before the submission, so that no completion can be missed. */
  expect(submission: number): Promise<Completion> {
    return new Promise((resolve) => this.#waiting.set(submission, resolve));
  }

  accept(batch: readonly (Completion | DrainedNotice)[]): void {
    for (const notice of batch) {
      if (notice.kind !== 'completion') continue;
      this.#waiting.get(notice.submission)?.(notice);
      this.#waiting.delete(notice.submission);
    }
  }
}
