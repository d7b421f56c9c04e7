import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  type CoordinatorCall,
  DEFAULT_EPOCH_MS,
  DisaggCoordinator,
  LeastLoadedRouter,
  PrefixOverlapRouter,
  type Router,
  type ServerCall,
  type ServerEvents,
  type ServerRequest,
  SnowflakeIds,
} from '../../src/coordinator/index.js';
import { PeerLostError, ResourceError } from '../../src/errors.js';
import { FakeClock } from '../sim-lite/fake-clock.js';
import { seededRandom } from '../sim-lite/seeded-random.js';
import { FakeServer, type Submitted } from '../unit/coordinator/fake-server.js';

interface Open {
  readonly submitted: Submitted;
  answered: boolean;
}

/** A server that keeps its own account of what it has. */
class CountingServer extends FakeServer {
  readonly open = new Set<Open>();

  override submit(request: ServerRequest, events: ServerEvents): ServerCall {
    const call = super.submit(request, events);
    const open = { submitted: this.last, answered: false };
    this.open.add(open);
    void call.done.then(() => this.open.delete(open));
    return call;
  }

  /** What a router should be told. */
  load(): readonly [requests: number, tokens: number] {
    const prompts = [...this.open].map(({ submitted }) => submitted.request.promptTokens.length);
    return [prompts.length, prompts.reduce((sum, length) => sum + length, 0)];
  }
}

class World {
  readonly clock = new FakeClock(0);
  readonly random: () => number;
  readonly contexts = ['c0', 'c1', 'c2'].map((name) => new CountingServer(name, `tcp://${name}:1`, []));
  readonly generations = ['g0', 'g1'].map((name) => new CountingServer(name, null, []));
  readonly calls: CoordinatorCall[] = [];
  readonly coordinator: DisaggCoordinator;
  readonly #drained = new Map<string, boolean>();

  constructor(seed: number) {
    this.random = seededRandom(seed);
    const { clock } = this;
    const router = (): Router =>
      this.random() < 0.5 ? new LeastLoadedRouter() : new PrefixOverlapRouter({ tokensPerBlock: 4 });
    this.coordinator = new DisaggCoordinator({
      clock,
      ids: new SnowflakeIds({ clock, unixTimeAtOriginMs: DEFAULT_EPOCH_MS + 1e6, nodeId: 0, processId: 0 }),
      context: this.contexts,
      generation: this.generations,
      scheduleStyle: 'generation_first',
      contextRouter: router(),
      generationRouter: router(),
      maxRetries: 2,
      onWarning: (message) => expect.unreachable(message),
    });
  }

  act(): void {
    const server = this.#pick([...this.contexts, ...this.generations]);
    const open = server === undefined ? undefined : this.#pick([...server.open]);
    const roll = this.random();
    if (roll < 0.3) this.#submit();
    else if (roll < 0.4) this.#pick(this.calls)?.cancel();
    else if (roll < 0.45) this.clock.advance(this.random() * 2000);
    else if (roll < 0.5 && server !== undefined) server.refusal = server.refusal ? null : new ResourceError('full');
    else if (roll < 0.53 && server !== undefined) this.#die(server);
    else if (roll < 0.56 && server !== undefined) this.#drain(server);
    else if (open === undefined) return;
    else if (roll < 0.64) open.submitted.end({ outcome: 'failed', error: new PeerLostError('gone') });
    else if (roll < 0.7) open.submitted.end({ outcome: 'cancelled' });
    else if (roll < 0.82) this.#answer(open);
    else if (roll < 0.87) open.submitted.events.onToken?.(7, 0);
    else open.submitted.end({ outputTokens: [7, 8] });
  }

  check(): void {
    const { contextServers, generationServers } = this.coordinator;
    const told = (pool: typeof contextServers) =>
      pool.status().map(({ liveRequests, liveTokens }) => [liveRequests, liveTokens]);
    expect(told(contextServers)).toEqual(this.contexts.map((server) => server.load()));
    const reserved = told(generationServers);
    for (const [index, server] of this.generations.entries()) {
      const [requests, tokens] = reserved[index] as [number, number];
      // Those whose prompt is still being computed count as well where they will go.
      expect(requests).toBeGreaterThanOrEqual(server.load()[0]);
      expect(tokens).toBeGreaterThanOrEqual(server.load()[1]);
    }
    const waiting = this.contexts.flatMap(({ open }) =>
      [...open].filter(
        ({ answered, submitted }) => !answered && submitted.request.params.scheduleStyle === 'context_first',
      ),
    );
    const ahead = reserved.reduce((sum, [requests = 0]) => sum + requests, 0) - this.#generating();
    expect(ahead).toBeLessThanOrEqual(waiting.length);
    for (const [name, isDrained] of this.#drained) {
      const index = this.contexts.findIndex((server) => server.name === name);
      const [live] =
        index >= 0 ? (this.contexts[index] as CountingServer).load() : (reserved[Number(name[1])] as number[]);
      expect([name, isDrained]).toEqual([name, live === 0]);
    }
  }

  async settle(): Promise<void> {
    for (const server of [...this.contexts, ...this.generations]) server.refusal = null;
    for (let round = 0; round < 12; round++) {
      for (const server of [...this.contexts, ...this.generations])
        for (const open of [...server.open]) {
          this.#answer(open);
          open.submitted.end({ outputTokens: [7, 8] });
        }
      await this.clock.turn();
      await this.clock.run(2000);
    }
    expect(this.coordinator.liveCount).toBe(0);
    for (const pool of [this.coordinator.contextServers, this.coordinator.generationServers])
      for (const { liveRequests, liveTokens } of pool.status()) expect([liveRequests, liveTokens]).toEqual([0, 0]);
    for (const [name, isDrained] of this.#drained) expect([name, isDrained]).toEqual([name, true]);
  }

  #generating(): number {
    return this.generations.reduce((sum, server) => sum + server.load()[0], 0);
  }

  #submit(): void {
    const length = 1 + Math.floor(this.random() * 40);
    this.calls.push(
      this.coordinator.submit({
        promptTokens: Uint32Array.from({ length }, (_, index) => index),
        maxTokens: 2,
        scheduleStyle: this.random() < 0.5 ? 'context_first' : 'generation_first',
      }),
    );
  }

  #answer(open: Open): void {
    const { request, events } = open.submitted;
    if (request.params.requestType !== 'context_only') return;
    open.answered = true;
    events.onContextAnswer?.({ ...request.params, requestType: 'generation_only' });
  }

  /** Its calls fail, and another process answers under its name. */
  #die(server: CountingServer): void {
    server.state = { ...server.state, incarnation: server.state.incarnation + 1n };
    for (const { submitted } of server.open) submitted.end({ outcome: 'failed', error: new PeerLostError('killed') });
  }

  #drain(server: CountingServer): void {
    const { contextServers, generationServers } = this.coordinator;
    const pool = this.contexts.includes(server) ? contextServers : generationServers;
    // One of each side goes on taking requests.
    if (server.name.endsWith('0') || this.#drained.has(server.name)) return;
    this.#drained.set(server.name, false);
    void pool.drain(server.name).then(() => this.#drained.set(server.name, true));
  }

  #pick<T>(items: readonly T[]): T | undefined {
    return items[Math.floor(this.random() * items.length)];
  }
}

describe('what a pool says of its servers', () => {
  it('is what each of them has, whatever becomes of its requests; and nothing at the end', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 1_000_000 }), async (seed) => {
        const world = new World(seed);
        for (let step = 0; step < 60; step++) {
          world.act();
          await world.clock.turn();
          world.check();
        }
        await world.settle();
      }),
      { numRuns: 150 },
    );
  });
});
