import { describe, expect, it } from 'vitest';
import type { CoordinatorResult } from '../../../src/coordinator/coordinator-request.js';
import { type CoordinatorCall, DisaggCoordinator } from '../../../src/coordinator/disagg-coordinator.js';
import { PeerLostError } from '../../../src/errors.js';
import type { WorkerLink } from '../../../src/serve/link/worker-link.js';
import { seededRandom } from '../../sim-lite/seeded-random.js';
import { SpentClock } from '../../sim-lite/spent-clock.js';
import { FakeServer, type Submitted } from '../coordinator/fake-server.js';
import { linkWorld, WORKER } from './link-world.js';

const OTHER = 'tcp://127.0.0.1:2001';

interface Asked {
  readonly call: CoordinatorCall;
  readonly ids: Set<bigint>;
  result: CoordinatorResult | null;
  isReleased: boolean;
}

/** A coordinator over links to two context workers, and two generation servers, where anything happens between any two portions. */
class Bustle {
  readonly random: () => number;
  readonly clock = new SpentClock();
  readonly world = linkWorld('context', this.clock);
  readonly generations = ['g0', 'g1'].map((name) => new FakeServer(name, 'tcp://127.0.0.1:4000', []));
  readonly workers: FakeServer[] = [];
  readonly links: readonly WorkerLink[];
  readonly coordinator: DisaggCoordinator;
  readonly asked: Asked[] = [];
  readonly refusals: string[] = [];
  closed: 'no' | 'closing' | 'closed' = 'no';
  #incarnation = 1n;
  #isUp = true;

  constructor(seed: number) {
    this.random = seededRandom(seed);
    const { front, link, ids } = this.world;
    const links = [link, front.add('context-1', 'context')] as const;
    this.links = links;
    this.coordinator = new DisaggCoordinator({
      clock: this.clock,
      ids: ids.ids,
      context: links,
      generation: this.generations,
      scheduleStyle: 'generation_first',
      onWarning: (message) => this.refusals.push(message),
    });
    for (const one of links) {
      const submit = one.submit.bind(one);
      one.submit = (request, events) => {
        if (one.condition().phase !== 'ready') this.refusals.push(`${one.name} is asked while it is down`);
        return submit(request, events);
      };
    }
    this.#start(2000);
    this.#start(2001);
    link.attach(WORKER);
    links[1].attach(OTHER);
  }

  #start(port: number): void {
    this.workers.push(this.world.startWorker({ port, incarnation: this.#incarnation++ }).server);
  }

  pick<T>(items: readonly T[]): T | undefined {
    return items[Math.floor(this.random() * items.length)];
  }

  submit(): void {
    const call = this.coordinator.submit({ promptTokens: Uint32Array.of(1, 2, 3), maxTokens: 4 });
    const asked: Asked = { call, ids: new Set([call.id]), result: null, isReleased: false };
    void call.result.then((result) => {
      asked.result = result;
      asked.ids.add(result.id);
    });
    void call.released.then(() => {
      asked.isReleased = true;
    });
    this.asked.push(asked);
  }

  kill(): void {
    this.#isUp = false;
    this.world.wires.kill(WORKER);
    expect(this.world.link.condition().phase).toBe('down');
  }

  close(deadlineMs: number): void {
    this.closed = 'closing';
    void this.coordinator.close({ deadlineMs }).then(() => {
      // With the last of them, and not before.
      expect(this.asked.filter(({ isReleased }) => !isReleased)).toEqual([]);
      this.closed = 'closed';
    });
  }

  async step(): Promise<void> {
    const roll = this.random();
    if (roll < 0.45) {
      await this.clock.turn();
      // What routers see of a worker is what its link has under way, not what others still have of the same requests.
      const { context } = this.coordinator.stats();
      expect(context.map(({ liveRequests }) => liveRequests)).toEqual(this.links.map(({ liveCalls }) => liveCalls));
    } else if (roll < 0.6) this.clock.advance(0.1);
    else if (roll < 0.68) this.pick(this.asked)?.call.cancel();
    else if (roll < 0.76) this.#end(this.pick(this.#live()));
    else if (roll < 0.82) this.pick(this.#live())?.end({ outcome: 'failed', error: new PeerLostError('gone') });
    else if (roll < 0.9 && this.closed === 'no') this.submit();
    else if (roll < 0.94 && !this.#isUp) {
      this.#isUp = true;
      this.#start(2000);
    } else if (roll < 0.96 && this.#isUp) this.kill();
    else if (roll < 0.98 && this.closed === 'no') this.close(this.random() < 0.5 ? 1 : 1000);
  }

  #live(): Submitted[] {
    return [...this.generations, ...this.workers].flatMap(({ submitted }) => submitted);
  }

  #end(one: Submitted | undefined): void {
    one?.end({ outputTokens: one.request.params.requestType === 'generation_only' ? [5, 6] : [] });
  }

  async settle(): Promise<void> {
    if (this.closed === 'no') this.close(1000);
    for (let i = 0; i < 6; i++) {
      for (const one of this.#live()) this.#end(one);
      await this.clock.turn(60);
      await this.clock.run(60);
    }
  }
}

describe('a worker is lost while anything else happens between the portions', () => {
  it.each(Array.from({ length: 60 }, (_, index) => index + 1))('each request ends, once: seed %i', async (seed) => {
    const b = new Bustle(seed);
    await b.clock.run(5);
    for (let i = 0; i < 12; i++) b.submit();
    await b.clock.run(5);
    expect(b.workers.map(({ submitted }) => submitted.length)).toEqual([6, 6]);
    b.kill();
    for (let i = 0; i < 120; i++) await b.step();
    await b.settle();
    expect([b.closed, b.refusals, b.world.front.internalErrors]).toEqual(['closed', [], 0]);
    const { live, context, generation } = b.coordinator.stats();
    expect([live, ...[...context, ...generation].flatMap((one) => [one.liveRequests, one.liveTokens])]).toEqual(
      Array.from({ length: 9 }, () => 0),
    );
    for (const { result, ids } of b.asked) {
      expect(result).not.toBeNull();
      if (result === null) continue;
      expect(ids.size).toBe(result.attempts);
      expect(result.attempts).toBeLessThanOrEqual(2);
      expect(result.outputTokens).toEqual(result.outcome === 'completed' ? [5, 6] : []);
    }
    // No id goes to a server twice: a retry is another request for both.
    for (const servers of [b.generations, b.workers]) {
      const rids = servers.flatMap(({ submitted }) => submitted.map(({ request }) => request.params.disaggRequestId));
      expect(new Set(rids).size).toBe(rids.length);
    }
  });

  it('those that nobody cancelled go to the other worker', async () => {
    const b = new Bustle(0);
    await b.clock.run(5);
    for (let i = 0; i < 12; i++) b.submit();
    await b.clock.run(5);
    b.kill();
    const [, other] = b.workers as [FakeServer, FakeServer];
    const counts: number[] = [];
    for (let i = 0; i < 8; i++) {
      await b.clock.turn();
      counts.push(b.coordinator.stats().context[1]?.liveRequests ?? 0);
    }
    // One a turn, and the first one with the loss itself.
    expect(counts).toEqual([8, 9, 10, 11, 12, 12, 12, 12]);
    await b.clock.run(5);
    expect(other.submitted).toHaveLength(12);
    await b.settle();
    expect(b.asked.map(({ result }) => result?.outcome)).toEqual(Array.from({ length: 12 }, () => 'completed'));
    expect(b.asked.map(({ result }) => result?.attempts).sort()).toEqual([1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
  });
});
