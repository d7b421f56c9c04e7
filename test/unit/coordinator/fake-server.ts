import type {
  DisaggServer,
  ServerCall,
  ServerCondition,
  ServerEvents,
  ServerRequest,
  ServerResult,
} from '../../../src/coordinator/disagg-server.js';
import type { KvTransceiverError } from '../../../src/errors.js';

export interface Submitted {
  readonly request: ServerRequest;
  readonly events: ServerEvents;
  readonly end: (result: Partial<ServerResult>) => void;
}

/** A server whose requests end when the test says so; `log` gets what it is told, in order. */
export class FakeServer implements DisaggServer {
  readonly submitted: Submitted[] = [];
  refusal: KvTransceiverError | null = null;
  state: ServerCondition = { phase: 'ready', incarnation: 1n, reason: '' };
  readonly name: string;
  readonly infoEndpoint: string | null;
  readonly #log: string[];

  constructor(name: string, infoEndpoint: string | null, log: string[]) {
    this.name = name;
    this.infoEndpoint = infoEndpoint;
    this.#log = log;
  }

  condition(): ServerCondition {
    return this.state;
  }

  submit(request: ServerRequest, events: ServerEvents): ServerCall {
    if (this.refusal !== null) throw this.refusal;
    this.#log.push(`${this.name} ${request.params.requestType}`);
    let end: Submitted['end'] = () => {};
    const done = new Promise<ServerResult>((resolve) => {
      end = (result) => resolve({ outcome: 'completed', outputTokens: [], error: null, ...result });
    });
    this.submitted.push({ request, events, end });
    return { done, cancel: () => void this.#log.push(`${this.name} cancel`) };
  }

  get last(): Submitted {
    return this.submitted.at(-1) as Submitted;
  }
}
