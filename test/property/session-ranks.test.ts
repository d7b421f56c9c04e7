import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { KvTransceiverError } from '../../src/errors.js';
import { type InstanceShape, type Rank, type RankRequest, RankWorld } from '../sim-lite/rank-world.js';
import { seededRandom } from '../sim-lite/seeded-random.js';

interface Life {
  readonly sent: readonly RankRequest[];
  readonly received: readonly RankRequest[];
  readonly chunk: number;
  /** Context ranks that got no further slice: settled, refused or cancelled there. */
  readonly ended: Set<RankRequest>;
  readonly asked: Set<RankRequest>;
}

/**
 * Requests between instances of random shapes under lost, repeated, late and reordered frames, failing and hanging writes, ranks that
 * come late and cancels at any rank. At quiescence each rank has one outcome per request, nothing is held, and what completed is right.
 */
async function live(seed: number): Promise<number> {
  let completed = 0;
  const random = seededRandom(seed);
  const pick = (n: number): number => Math.floor(random() * n);
  const one = <T>(...choices: readonly T[]): T => choices[pick(choices.length)] as T;
  const kvHeads = one(2, 8);
  const cp = one('context', 'generation', null, null);
  const shape = (side: 'context' | 'generation'): InstanceShape => {
    const dpSize = random() < 0.4 ? 2 : 1;
    return {
      tpSize: one(1, 2, 4) * dpSize,
      dpSize,
      cpSize: cp === side ? 2 : 1,
      layersPerStage: one([4], [4], [3, 1], [2, 2], [1, 3]),
      tokensPerBlock: one(4, 4, 8),
      blockLayout: one('HND', 'NHD'),
      auxSlots: one(2, 4),
      kvHeads,
    };
  };
  const [contextShape, generationShape] = [shape('context'), shape('generation')];
  const world = new RankWorld();
  const context = await world.instance('context', contextShape, false);
  const generation = await world.instance('generation', generationShape, false);
  const [loss, copies, jitterMs] = [one(0, 0.1, 0.25), 1 + pick(2), pick(100)];
  const heal = world.network.addRule(() =>
    random() < loss ? { copies: 0 } : { copies, delayMs: random() * jitterMs },
  );
  const group = (ranks: readonly Rank[], dpRank: number): Rank[] =>
    ranks.filter(({ place }) => !place.attentionDp || place.dpRank === dpRank);
  const lives: Life[] = [];
  for (let n = 0; n < 2; n += 1) {
    const dpRank = pick(contextShape.dpSize ?? 1);
    const options = {
      promptLen: 1 + pick(20),
      rid: (1n << 41n) + BigInt(n + 1),
      firstSlot: n,
      pipelined: random() < 0.8,
    };
    const endpoint = one(...context).transceiver.endpoint;
    lives.push({
      sent: world.place(group(context, dpRank), 'context', options),
      received: world.place(group(generation, pick(generationShape.dpSize ?? 1)), 'generation', {
        ...options,
        endpoint,
        ctxDpRank: random() < 0.5 ? dpRank : null,
      }),
      chunk: 1 + pick(8),
      ended: new Set(),
      asked: new Set(),
    });
  }
  const story = `seed ${seed}: ${JSON.stringify(contextShape)} -> ${JSON.stringify(generationShape)}`;
  world.join(context);
  if (random() < 0.8) await world.run(pick(400));
  world.join(generation);
  const scripts = ['transfer', 'transfer', 'transfer', 'hang', 'fail', 'fail-undrained'] as const;
  const [faulty, cancelling, killing] = [random() < 0.4, random() < 0.4, random() < 0.25];
  const dead = new Set<Rank>();
  const kill = (rank: Rank): void => {
    dead.add(rank);
    world.kill(rank);
    for (const { sent, received, ended, asked } of lives) {
      for (const placed of sent) if (placed.rank === rank) ended.add(placed);
      for (const placed of received) if (placed.rank === rank) asked.add(placed);
    }
  };
  for (let step = 0; step < 50; step += 1) {
    const life = one(...lives);
    if (faulty && random() < 0.2) one(...context).agent.scripts.push(one(...scripts));
    const action = random();
    if (action < 0.4) ask(life, one(...life.received));
    else if (action < 0.9 || !cancelling) {
      for (const sent of life.sent) if (random() < 0.9) compute(life, sent);
    } else if (action < 0.95) cancel(life, one(...life.sent));
    else {
      const { rank, request } = one(...life.received);
      if (!dead.has(rank)) rank.transceiver.cancelRequest(request, 'generation cancel');
    }
    if (random() < 0.1) one(...context).agent.release();
    if (killing && step === 25) kill(one(...context, ...generation));
    await world.run(10 + pick(50));
  }
  for (const life of lives) {
    for (const received of life.received) ask(life, received);
    for (let i = 0; i < 20; i += 1) {
      for (const sent of life.sent) compute(life, sent);
      await world.run(20);
    }
  }
  heal();
  for (let i = 0; i < 6; i += 1) {
    for (const { agent } of context) agent.release();
    await world.run(10_000, 200);
  }

  for (const { sent, received } of lives) {
    for (const placed of [...sent, ...received]) {
      const settled = placed.rank.settled.filter(({ request }) => request === placed.request);
      expect(settled.length, `${story}, rank ${placed.rank.transceiver.endpoint}`).toBeLessThanOrEqual(1);
    }
    for (const placed of received) {
      if (dead.has(placed.rank)) continue;
      const [settled, ...more] = placed.rank.settled.filter(({ request }) => request === placed.request);
      expect(settled, `${story}: no outcome`).toBeDefined();
      expect(more, story).toEqual([]);
      if (settled?.outcome === 'completed') completed += 1;
      if (settled?.outcome === 'completed') expect(world.wrongWords(placed), `${story}: bytes`).toBe(0);
      const { salvageableTokens = 0 } = settled ?? {};
      if (salvageableTokens > 0)
        expect(world.wrongWords(placed, 0, salvageableTokens), `${story}: the first ${salvageableTokens}`).toBe(0);
    }
    // Nothing went wrong, so nothing may fail.
    if (!faulty && !cancelling && !killing && loss === 0)
      expect(
        received.map(({ rank, request }) => rank.settled.find((one) => one.request === request)?.outcome),
        story,
      ).toEqual(received.map(() => 'completed'));
  }
  expect(world.leftovers(), story).toEqual([]);
  for (const { transceiver } of generation.filter((rank) => !dead.has(rank)))
    expect(transceiver.stats().freeAuxSlots, story).toBe(generationShape.auxSlots);
  for (const { transceiver } of context.filter((rank) => !dead.has(rank)))
    expect(transceiver.stats().freeAuxSlots, story).toBe(contextShape.auxSlots);
  return completed;
}

function ask({ asked }: Life, received: RankRequest): void {
  if (asked.has(received)) return;
  asked.add(received);
  received.rank.transceiver.requestAndReceiveAsync(received.request);
}

function cancel({ ended }: Life, sent: RankRequest): void {
  ended.add(sent);
  sent.rank.transceiver.cancelRequest(sent.request, 'context cancel');
}

function compute({ ended, chunk }: Life, sent: RankRequest): void {
  if (ended.has(sent)) return;
  const { request } = sent;
  const promptLen = request.promptTokens.length;
  request.chunkStart = request.chunkEnd;
  request.chunkEnd = Math.min(promptLen, request.chunkEnd + chunk);
  if (request.chunkEnd === promptLen) {
    request.outputTokens.push(1);
    ended.add(sent);
  }
  try {
    sent.rank.transceiver.respondAndSendAsync(request, { after: null });
  } catch (error) {
    expect(error).toBeInstanceOf(KvTransceiverError);
    ended.add(sent);
  }
}

describe('transfers between instances of several ranks under faults', () => {
  it('each rank has one outcome per request, nothing is held, what completed is right', async () => {
    const numRuns = Number(process.env['RANK_RUNS'] ?? 40);
    let completed = 0;
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 1_000_000 }), async (seed) => {
        completed += await live(seed);
      }),
      { numRuns, endOnFailure: true },
    );
    // Faults must not be all there is.
    expect(completed).toBeGreaterThan(numRuns);
  }, 600_000);
});
