import process from 'node:process';
import type { TransferAgent } from '../../../src/agent/transfer-agent.js';
import type { NoteMoment } from './server-messages.js';

interface Strike {
  readonly moment: NoteMoment;
  readonly pid: number;
}

/**
 * Role: kills a process at an exact moment beside a note, from where that moment is known: between the agent and the transceiver of one server.
 * Why: from outside, a kill would have to hit some ten microseconds.
 */
export class NoteMoments {
  #next: Strike | null = null;

  /** The next such moment kills this process. */
  arm(strike: Strike): void {
    this.#next = strike;
  }

  /** The agent as its transceiver sees it. */
  between(agent: TransferAgent): TransferAgent {
    const own: Partial<TransferAgent> = {
      submit: (submission) => {
        agent.submit(submission);
        if (submission.note !== undefined) this.#reached('armed');
      },
      onCompletions: (listener) =>
        agent.onCompletions((batch) => {
          if (batch.some((notice) => notice.kind === 'note' && notice.isSent)) this.#reached('said');
          listener(batch);
        }),
      onNote: (listener) =>
        agent.onNote?.((peerId, note) => {
          this.#reached('heard');
          listener(peerId, note);
          this.#reached('taken');
        }),
    };
    return new Proxy(agent, {
      get: (_, name) => {
        const value: unknown = Reflect.get(name in own ? own : agent, name);
        return typeof value === 'function' && !(name in own) ? value.bind(agent) : value;
      },
    });
  }

  #reached(moment: NoteMoment): void {
    if (this.#next?.moment !== moment) return;
    const { pid } = this.#next;
    this.#next = null;
    process.kill(pid, 'SIGKILL');
    if (pid !== process.pid) return;
    // The signal comes before this returns, or a moment later; until then nothing more may be done here.
    for (;;);
  }
}
