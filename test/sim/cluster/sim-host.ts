import type {
  DisaggServer,
  ServerCall,
  ServerEvents,
  ServerRequest,
  ServerResult,
} from '../../../src/coordinator/disagg-server.js';
import { type KvTransceiverError, PeerLostError } from '../../../src/errors.js';
import { typedError } from '../../../src/executor/typed-error.js';
import type { Journal } from '../core/journal.js';
import type { Random } from '../core/random.js';
import type { Scheduler } from '../core/scheduler.js';
import type { SimFabric } from '../parts/sim-fabric.js';
import type { SimNetwork } from '../parts/sim-network.js';
import type { SimInstance } from './sim-instance.js';
import type { SimServer } from './sim-server.js';

export interface SimHostOptions {
  readonly name: string;
  /** Of the rank that requests name. */
  readonly endpoint: string;
  readonly scheduler: Scheduler;
  readonly network: SimNetwork;
  readonly fabric: SimFabric;
  readonly journal: Journal;
  readonly random: Random;
  readonly boot: () => SimInstance;
}

interface RunningCall {
  readonly server: SimServer;
  readonly finish: (result: ServerResult) => void;
}

/**
 * Role: one address of the cluster and the instance that answers there now; what a coordinator sees of it over a connection.
 * Ordering: calls and their events take a moment each way; when the process dies, its calls fail like broken connections.
 */
export class SimHost implements DisaggServer {
  readonly name: string;
  readonly infoEndpoint: string;
  readonly #o: SimHostOptions;
  readonly #calls = new Set<RunningCall>();
  readonly #onDown = new Map<SimServer, (() => void)[]>();
  instance: SimInstance;
  readonly #instances: SimInstance[] = [];

  constructor(options: SimHostOptions) {
    this.#o = options;
    this.name = options.name;
    this.infoEndpoint = options.endpoint;
    this.instance = this.#boot();
  }

  /** The first rank, which is the only one of most. */
  get server(): SimServer {
    return this.instance.ranks[0] as SimServer;
  }

  /** Takes requests. */
  get alive(): boolean {
    return this.instance.isWhole;
  }

  /** Ranks that run, also those that have lost their siblings. */
  get running(): readonly SimServer[] {
    return this.instance.ranks.filter(({ process, closing }) => process.state !== 'dead' && !closing);
  }

  /** Every process that ran here. */
  get history(): readonly SimServer[] {
    return this.#instances.flatMap(({ history }) => history);
  }

  submit(request: ServerRequest, events: ServerEvents): ServerCall {
    const { instance } = this;
    const { scheduler } = this.#o;
    const server = instance.nextLeader();
    let resolveDone: (result: ServerResult) => void = () => {};
    const done = new Promise<ServerResult>((resolve) => {
      resolveDone = resolve;
    });
    const call: RunningCall = {
      server,
      finish: (result) => {
        if (!this.#calls.delete(call)) return;
        scheduler.at(this.#hop(), null, () => resolveDone(result));
      },
    };
    this.#calls.add(call);
    let inner: ServerCall | null = null;
    let cancelled = false;
    if (!this.alive) {
      call.finish(failed(new PeerLostError(`${this.name} refuses the connection`, { peer: this.name })));
      return { done, cancel: () => {} };
    }
    scheduler.at(this.#hop(), server.process, () => {
      if (!this.#calls.has(call)) return;
      try {
        inner = instance.submit(server, request, {
          onContextAnswer: (params) => scheduler.at(this.#hop(), null, () => events.onContextAnswer?.(params)),
          onToken: (token, index) => scheduler.at(this.#hop(), null, () => events.onToken?.(token, index)),
        });
      } catch (error) {
        call.finish(failed(typedError(error, 'the server refused the request')));
        return;
      }
      if (cancelled) inner.cancel();
      void inner.done.then(call.finish);
    });
    const cancel = (): void => {
      if (cancelled) return;
      cancelled = true;
      scheduler.at(this.#hop(), server.process, () => inner?.cancel());
    };
    return { done, cancel };
  }

  /** kill -9, of one rank or of all. */
  crash(noticed: boolean, rank: number | null = null): void {
    for (const server of [...this.instance.ranks])
      if (rank === null || server.rank === rank) this.#kill(server, noticed);
    if (this.instance.isGone) this.instance.end();
  }

  #kill(server: SimServer, noticed: boolean): void {
    if (server.process.state === 'dead') return;
    this.instance.lost(server.rank, noticed);
    this.#o.journal.note(20, 0, 0, () => `${server.name} dies`);
    server.process.state = 'dead';
    this.#o.fabric.kill(server.agent);
    this.#o.network.unbind(server.messenger, noticed);
    this.#dropCalls(server);
  }

  shutDown(deadlineMs: number): void {
    for (const server of this.running) {
      this.#o.journal.note(21, 0, 0, () => `${server.name} shuts down`);
      void server.shutDown(deadlineMs).then(() => {
        this.#o.journal.note(22, 0, 0, () => `${server.name} has shut down`);
        this.#dropCalls(server);
      });
    }
  }

  restart(): void {
    // Ranks that are left of an instance are stopped before all of it is started again.
    const { ranks, isPatched } = this.instance;
    const isPart = isPatched || ranks.some(({ process, parted }) => process.state === 'dead' || parted);
    if (isPart && !ranks.some(({ closing }) => closing)) this.crash(true);
    if (!this.instance.isGone) return;
    this.instance.end();
    this.instance = this.#boot();
    this.#o.journal.note(23, 0, 0, () => `${this.server.name} starts at ${this.infoEndpoint}`);
  }

  /** A supervisor that knows nothing of instances. */
  restartRank(rank: number): void {
    const server = this.instance.restartRank(rank);
    if (server !== null) this.#o.journal.note(24, rank, 0, () => `${server.name} starts alone`);
  }

  #boot(): SimInstance {
    const instance = this.#o.boot();
    this.#instances.push(instance);
    return instance;
  }

  /** Once, when the process is gone. */
  onDown(server: SimServer, run: () => void): void {
    const listeners = this.#onDown.get(server);
    if (listeners === undefined) this.#onDown.set(server, [run]);
    else listeners.push(run);
  }

  #dropCalls(server: SimServer): void {
    for (const run of this.#onDown.get(server) ?? []) run();
    this.#onDown.delete(server);
    for (const call of [...this.#calls])
      if (call.server === server)
        call.finish(failed(new PeerLostError(`the connection to ${this.name} broke`, { peer: this.name })));
  }

  #hop(): number {
    return this.#o.random.real(0.05, 0.5);
  }
}

function failed(error: KvTransceiverError): ServerResult {
  return { outcome: 'failed', outputTokens: [], error };
}
