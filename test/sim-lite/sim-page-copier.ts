import type { ByteCopy, MemoryStretch, PageCopier } from '../../src/agent/page-copier.js';
import type { Clock } from '../../src/clock.js';
import type { SimAgent } from './sim-agent.js';

/** Copies real bytes between the pools of a simulated agent, each call some time after it was made. */
export class SimPageCopier implements PageCopier {
  readonly #agent: SimAgent;
  readonly #clock: Clock;
  readonly #delayMs: () => number;
  /** Copies that were made. */
  copies = 0;

  constructor(agent: SimAgent, clock: Clock, delayMs: () => number) {
    this.#agent = agent;
    this.#clock = clock;
    this.#delayMs = delayMs;
  }

  async copy(stretches: readonly MemoryStretch[], copies: readonly ByteCopy[]): Promise<void> {
    await new Promise<void>((resolve) => void this.#clock.setTimer(this.#delayMs(), resolve));
    for (const { fromStretch, fromOffset, toStretch, toOffset, bytes } of copies) {
      const from = this.#agent.readBytes((stretches[fromStretch]?.base ?? 0) + fromOffset, bytes);
      this.#agent.writeBytes((stretches[toStretch]?.base ?? 0) + toOffset, from);
      this.copies += 1;
    }
  }
}
