import type { RequestId } from '../cache/kv-cache-manager.js';
import { ArgumentError } from '../errors.js';
import type { RequestEvents, RequestOutcome } from './executor-events.js';
import { type LlmRequest, type RequestState, requestKey } from './request.js';
import { isTerminal, REQUEST_TRANSITIONS, type RequestEvent, type RequestRole, roleOf } from './request-states.js';
import { promptBlocks } from './scheduler.js';

const RECEIVING: RequestState = 'DISAGG_GENERATION_TRANS_IN_PROGRESS';

/** What the executor knows of one request beyond the request itself. */
export interface Entry {
  readonly request: LlmRequest;
  readonly role: RequestRole;
  readonly events: RequestEvents;
  readonly submittedAtMs: number;
  /** Place in the line for blocks: counts up as requests become schedulable. */
  order: number;
  /** Forwards under way that write its pages: whatever happens, they are given up only when the last of them ended. */
  stepsInFlight: number;
  /** A forward of it failed: what later ones computed on top is no content, whether or not they went well. */
  hasLostContent: boolean;
  /** Length of `request.outputTokens`, which nobody else may change. */
  outputCount: number;
  /** Null until it ended. */
  outcome: RequestOutcome | null;
  /** Its caller heard of it. */
  isTold: boolean;
}

/**
 * Role: every live request, and the queues, which are nothing but the requests of each state in order of arrival there.
 * Why: a queue kept beside the state would sooner or later disagree with it.
 */
export class RequestTable {
  readonly #entries = new Map<RequestId, Entry>();
  /** By what both servers know them by; of those that end without having been taken, none. */
  readonly #transfers = { context: new Map<bigint, Entry>(), generation: new Map<bigint, Entry>() };
  readonly #queues = new Map<RequestState, Set<Entry>>(
    (Object.keys(REQUEST_TRANSITIONS.transitions) as RequestState[]).map((state) => [state, new Set<Entry>()]),
  );
  readonly #cancelling = new Set<Entry>();
  readonly #tokensPerBlock: number;
  #nextOrder = 0;
  #receivingBlocks = 0;

  constructor(tokensPerBlock: number) {
    this.#tokensPerBlock = tokensPerBlock;
  }

  get size(): number {
    return this.#entries.size;
  }

  /** Blocks of the prompts that are being received. */
  get receivingBlocks(): number {
    return this.#receivingBlocks;
  }

  /** Requests whose user cancelled them and that are not finished. */
  get cancelling(): ReadonlySet<Entry> {
    return this.#cancelling;
  }

  /** @throws ArgumentError when a live request has this id */
  add(request: LlmRequest, events: RequestEvents, submittedAtMs: number): Entry {
    if (this.#entries.has(request.id)) {
      throw new ArgumentError(`request id ${request.id} is in use; ids are unique among live requests of a server`);
    }
    const entry: Entry = {
      request,
      role: roleOf(request),
      events,
      submittedAtMs,
      order: this.#nextOrder++,
      stepsInFlight: 0,
      hasLostContent: false,
      outputCount: 0,
      outcome: null,
      isTold: false,
    };
    this.#entries.set(request.id, entry);
    if (entry.role !== 'aggregate' && this.transferOf(request) === undefined)
      this.#transfers[entry.role].set(requestKey(request), entry);
    this.in(request.state).add(entry);
    return entry;
  }

  /** The entry of this very request; undefined once it finished, also when its id was used again. */
  find(request: LlmRequest): Entry | undefined {
    const entry = this.#entries.get(request.id);
    return entry?.request === request ? entry : undefined;
  }

  /** The live request of the same role and disaggregated id, whose transfer this one's would be taken for. */
  transferOf(request: LlmRequest): Entry | undefined {
    const role = roleOf(request);
    const entry = role === 'aggregate' ? undefined : this.#transfers[role].get(requestKey(request));
    return entry?.outcome === null ? entry : undefined;
  }

  byId(id: RequestId): Entry | undefined {
    return this.#entries.get(id);
  }

  /** Live requests in each state. */
  countStates(): Record<RequestState, number> {
    return Object.fromEntries([...this.#queues].map(([state, queue]) => [state, queue.size])) as Record<
      RequestState,
      number
    >;
  }

  all(): Iterable<Entry> {
    return this.#entries.values();
  }

  /** The queue of a state. Callers only read it; it is live. */
  in(state: RequestState): Set<Entry> {
    return this.#queues.get(state) as Set<Entry>;
  }

  /** @throws InternalError when the event is illegal in the request's state; nothing changed then */
  advance(entry: Entry, event: RequestEvent): void {
    const { request } = entry;
    const next = REQUEST_TRANSITIONS.next(request.state, event);
    this.#leave(entry);
    request.state = next;
    this.in(next).add(entry);
    if (next === RECEIVING) this.#receivingBlocks += promptBlocks(request, this.#tokensPerBlock);
    if (next === 'CONTEXT_INIT') entry.order = this.#nextOrder++;
    if (isTerminal(next)) this.#cancelling.delete(entry);
  }

  /** Moves a request to the end of its queue. */
  served(entry: Entry): void {
    const queue = this.in(entry.request.state);
    if (queue.delete(entry)) queue.add(entry);
  }

  markCancelling(entry: Entry): void {
    this.#cancelling.add(entry);
  }

  remove(entry: Entry): void {
    this.#entries.delete(entry.request.id);
    if (entry.role !== 'aggregate') {
      const transfers = this.#transfers[entry.role];
      const key = requestKey(entry.request);
      if (transfers.get(key) === entry) transfers.delete(key);
    }
    this.#leave(entry);
    this.#cancelling.delete(entry);
  }

  #leave(entry: Entry): void {
    const { request } = entry;
    const wasThere = this.in(request.state).delete(entry);
    if (wasThere && request.state === RECEIVING) {
      this.#receivingBlocks -= promptBlocks(request, this.#tokensPerBlock);
    }
  }
}
