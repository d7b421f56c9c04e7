import type { DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import type { DisaggServer } from '../../../src/coordinator/disagg-server.js';
import type { Journal } from '../core/journal.js';
import type { SimHost } from './sim-host.js';

/** What one coordinator has under way at one server, in calls and in prompt tokens. */
interface Load {
  calls: number;
  tokens: number;
}

/** Role: whether what a coordinator takes its servers for, and routes by, is what they have. Its own account: of the calls that it saw end. */
export class LeaseBook {
  readonly #journal: Journal;
  readonly #context: Load = { calls: 0, tokens: 0 };
  readonly #generation: Load = { calls: 0, tokens: 0 };
  /** Something came or went since the last check. */
  #changed = false;

  constructor(journal: Journal) {
    this.#journal = journal;
  }

  /** The server as the coordinator is to have it. */
  watched(side: 'context' | 'generation', host: SimHost): DisaggServer {
    const load = side === 'context' ? this.#context : this.#generation;
    const count = (calls: number, tokens: number): void => {
      load.calls += calls;
      load.tokens += tokens;
      this.#changed = true;
    };
    return {
      name: host.name,
      infoEndpoint: host.infoEndpoint,
      submit: (request, events) => {
        const call = host.submit(request, events);
        const { length } = request.promptTokens;
        count(1, length);
        void call.done.then(() => count(-1, -length));
        return call;
      },
    };
  }

  /** Between two events. */
  check(coordinator: DisaggCoordinator): void {
    if (!this.#changed) return;
    this.#changed = false;
    const [context] = coordinator.contextServers.status();
    const [generation] = coordinator.generationServers.status();
    if (context === undefined || generation === undefined) return;
    const asked = { calls: context.liveRequests, tokens: context.liveTokens };
    if (asked.calls !== this.#context.calls || asked.tokens !== this.#context.tokens)
      this.#journal.violation('I2 load', `${context.name} ${differ(asked, this.#context)}`);
    // A context-first request has its place there from the beginning, and no call before its prompt is computed.
    const ahead = generation.liveRequests - this.#generation.calls;
    if (ahead < 0 || ahead > this.#context.calls)
      this.#journal.violation(
        'I2 load',
        `${generation.name} ${differ({ calls: generation.liveRequests, tokens: generation.liveTokens }, this.#generation)}`,
      );
  }
}

function differ(taken: Load, has: Load): string {
  return `is taken for ${taken.calls} requests of ${taken.tokens} tokens and has ${has.calls} of ${has.tokens}`;
}
