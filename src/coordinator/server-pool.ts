import { ArgumentError, ResourceError } from '../errors.js';
import type { DisaggServer, ServerCondition } from './disagg-server.js';
import type { RouteCandidate, RoutedPrompt, Router } from './router.js';

const ALWAYS_READY: ServerCondition = { phase: 'ready', incarnation: 0n, reason: '' };

/** A server on loan for one try of a request, from its choice until this server has nothing more to do for it. */
export interface ServerLease {
  readonly server: DisaggServer;
  /** Gives it back. Idempotent. */
  end(): void;
}

/** What a coordinator sees of one server. */
export interface ServerStatus extends RouteCandidate {
  readonly phase: ServerCondition['phase'];
  readonly reason: string;
}

interface Member {
  readonly server: DisaggServer;
  /** Takes nothing new any more, whatever the server says of itself. */
  draining: boolean;
  liveRequests: number;
  liveTokens: number;
  readonly whenIdle: (() => void)[];
}

/**
 * Role: the servers of one role, and who of them takes the next request.
 * Ownership: the servers stay the caller's.
 */
export class ServerPool {
  readonly #role: 'context' | 'generation';
  readonly #router: Router;
  readonly #members = new Map<string, Member>();

  constructor(role: 'context' | 'generation', router: Router) {
    this.#role = role;
    this.#router = router;
  }

  /** @throws ArgumentError for a name that is taken; a server that died is replaced by `remove` and `add` */
  add(server: DisaggServer): void {
    if (this.#members.has(server.name))
      throw new ArgumentError(`there is a ${this.#role} server ${server.name} already: remove it first`);
    this.#members.set(server.name, { server, draining: false, liveRequests: 0, liveTokens: 0, whenIdle: [] });
  }

  /** Takes the server out at once; its live requests go on. False: no such server. */
  remove(name: string): boolean {
    if (!this.#members.delete(name)) return false;
    this.#router.forget?.(name);
    return true;
  }

  /** No new requests for it. @returns when it is done with its live ones, wherever else they go on; at once for an unknown one */
  drain(name: string): Promise<void> {
    const member = this.#members.get(name);
    if (member === undefined) return Promise.resolve();
    member.draining = true;
    if (member.liveRequests === 0) return Promise.resolve();
    return new Promise((resolve) => member.whenIdle.push(resolve));
  }

  status(): ServerStatus[] {
    return [...this.#members.values()].map((member) => {
      const { phase, reason, incarnation } = conditionOf(member);
      const { liveRequests, liveTokens } = member;
      return { name: member.server.name, incarnation, liveRequests, liveTokens, phase, reason };
    });
  }

  /**
   * @param avoid servers that failed this request before: taken only when no other is ready
   * @throws ResourceError when no server is ready
   */
  lease(prompt: RoutedPrompt, avoid: ReadonlySet<DisaggServer>): ServerLease {
    const ready = this.status().filter(({ phase }) => phase === 'ready');
    if (ready.length === 0) throw new ResourceError(this.#noneReady());
    const fresh = ready.filter(({ name }) => !avoid.has((this.#members.get(name) as Member).server));
    const { name } = this.#router.choose(fresh.length > 0 ? fresh : ready, prompt);
    return lend(this.#members.get(name) as Member, prompt.promptTokens.length);
  }

  #noneReady(): string {
    const servers = this.status().map(({ name, phase, reason }) => `${name} is ${phase}${reason && ` (${reason})`}`);
    return `no ${this.#role} server is ready: ${servers.length === 0 ? 'there is none' : servers.join(', ')}`;
  }
}

function lend(member: Member, promptTokens: number): ServerLease {
  member.liveRequests += 1;
  member.liveTokens += promptTokens;
  let ended = false;
  return {
    server: member.server,
    end: () => {
      if (ended) return;
      ended = true;
      member.liveRequests -= 1;
      member.liveTokens -= promptTokens;
      if (member.liveRequests === 0) for (const resolve of member.whenIdle.splice(0)) resolve();
    },
  };
}

function conditionOf({ server, draining }: Member): ServerCondition {
  const condition = server.condition?.() ?? ALWAYS_READY;
  if (!draining || condition.phase === 'down') return condition;
  return { ...condition, phase: 'draining', reason: condition.reason || 'it is being drained' };
}
