import type { Completion, SubmissionNotice, TransferAgent } from '../../src/agent/transfer-agent.js';
import { HANG_LIMIT_MS, withDeadline } from './deadline.js';

/** Everything an agent reported, and a way to wait for one submission. */
export class CompletionLog {
  readonly notices: SubmissionNotice[] = [];
  readonly #waiting = new Map<number, (completion: Completion) => void>();

  constructor(agent: TransferAgent) {
    agent.onCompletions((batch) => {
      for (const notice of batch) {
        this.notices.push(notice);
        if (notice.kind === 'completion') this.#waiting.get(notice.submission)?.(notice);
      }
    });
  }

  completions(): readonly Completion[] {
    return this.notices.filter((notice) => notice.kind === 'completion');
  }

  async of(submission: number, limitMs = HANG_LIMIT_MS): Promise<Completion> {
    const there = this.completions().find((completion) => completion.submission === submission);
    if (there !== undefined) return there;
    const arrived = new Promise<Completion>((resolve) => this.#waiting.set(submission, resolve));
    return withDeadline(arrived, limitMs, () => `submission ${submission}; seen: ${JSON.stringify(this.notices)}`);
  }
}
