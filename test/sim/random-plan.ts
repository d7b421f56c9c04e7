import { Random } from './core/random.js';
import { MAX_PROMPT_TOKENS } from './parts/prompts.js';
import type { MessageName } from './parts/sim-network.js';
import {
  type Fault,
  groupSize,
  type HostRef,
  type InstanceShape,
  type Plan,
  type RequestItem,
  rankCount,
  type Shape,
} from './plan.js';
import { randomSplit } from './random-split.js';

/** Virtual time in which requests come in. */
const ARRIVALS_MS = 900;

const REPEATED: readonly MessageName[] = [
  'HELLO',
  'HELLO_ACK',
  'REQUEST_DATA',
  'ACCEPTED',
  'SLICE_RESULT',
  'WRITER_REPORT',
  'REPORT_ACK',
  'CANCEL',
  'CANCEL_ACK',
  'PING',
  'PONG',
];

export function randomPlan(seed: number): Plan {
  const random = new Random(seed, 0);
  // Drawn for itself: the rest of a seed's plan is what it was before there were arenas.
  const bounce = new Random(seed, 9);
  const drawn = randomShape(random);
  // As the arenas, for itself.
  const schedules = new Random(seed, 10);
  const scheduled = (side: InstanceShape): InstanceShape =>
    schedules.chance(0.5) ? { ...side, schedule: 'overlap' } : side;
  const [context, generation] = [scheduled(drawn.context), scheduled(drawn.generation)];
  const shape = {
    ...drawn,
    context,
    generation,
    ...(bounce.chance(0.2) ? { arenaBytes: bounce.between(64, 2048) } : {}),
  };
  const isOneRank = rankCount(shape.context) + rankCount(shape.generation) === 2;
  const requests = Array.from({ length: isOneRank ? random.between(16, 56) : random.between(8, 24) }, (_, number) =>
    randomRequest(random, shape, number),
  );
  // A third of the runs is healthy but for cancels: what breaks there needs no fault to be seen.
  const faultCount = random.chance(0.3) ? 0 : random.between(1, 5);
  const faults = Array.from({ length: faultCount }, () => randomFault(random, shape));
  for (const { number } of requests) if (random.chance(0.15)) faults.push(randomCancel(random, number));
  return { seed, shape, requests, faults };
}

function randomShape(random: Random): Shape {
  const split = randomSplit(random);
  const most = rankCount(split.context) + rankCount(split.generation) === 2 ? 3 : 2;
  return {
    contexts: random.between(1, most),
    generations: random.between(1, most),
    ...split,
    // 16 blocks hold the longest prompt: with few slots more, requests wait for each other.
    slotCount: random.chance(0.4) ? random.between(17, 24) : random.between(30, 60),
    arenaBytes: null,
    auxSlots: random.chance(0.3) ? random.between(1, 3) : 16,
    chunkTokens: random.between(1, 24),
    tokenBudget: random.between(4, 48),
    maxTokensInBuffer: random.chance(0.3) ? random.between(1, 100) : null,
    msPerToken: random.real(0.02, 0.6),
    limits: {
      transferQueueTimeoutMs: random.between(2500, 5000),
      noProgressTimeoutMs: random.between(2000, 4000),
      kvTransferTimeoutMs: random.between(5500, 8000),
    },
  };
}

function randomRequest(random: Random, shape: Shape, number: number): RequestItem {
  const style = random.chance(0.65) ? 'generation_first' : 'context_first';
  const mode = random.next();
  const drawn =
    mode < 0.42
      ? 'coordinated'
      : mode < 0.76
        ? 'direct'
        : mode < 0.94
          ? 'bare'
          : mode < 0.97
            ? 'context-only'
            : 'generation-only';
  // An engine of ours alone: nothing would keep the ranks of a group alike that another one drives.
  const entrance = drawn === 'bare' && groupSize(shape.context) > 1 ? 'direct' : drawn;
  const pipelined = (style === 'generation_first' || entrance === 'bare') && random.chance(0.75);
  return {
    number,
    atMs: random.real(0, ARRIVALS_MS),
    entrance,
    context: random.below(shape.contexts),
    generation: random.below(shape.generations),
    style,
    pipelined,
    earlyPrefix: pipelined && random.chance(0.8),
    promptLen: random.chance(0.7) ? random.between(1, 24) : random.between(1, MAX_PROMPT_TOKENS - 4),
    family: random.below(6),
    maxTokens: random.between(1, 3),
    lagMs: random.chance(0.3) ? random.real(-300, 300) : 0,
  };
}

function randomCancel(random: Random, request: number): Fault {
  return {
    kind: 'cancel',
    request,
    by: random.pick(['user', 'context', 'generation'] as const),
    afterMs: random.chance(0.7) ? random.real(0, 60) : random.real(0, 1500),
  };
}

function randomFault(random: Random, shape: Shape): Fault {
  const fromMs = random.real(0, ARRIVALS_MS);
  const window = { fromMs, toMs: fromMs + random.real(20, 2500) };
  const context: HostRef = { side: 'context', index: random.below(shape.contexts) };
  const generation: HostRef = { side: 'generation', index: random.below(shape.generations) };
  const host = random.chance(0.5) ? context : generation;
  const ranks = rankCount(shape[host.side]);
  const isOne = ranks > 1 && random.chance(0.7);
  const oneRank = isOne ? { rank: random.below(ranks) } : {};
  const writer =
    rankCount(shape.context) > 1 && random.chance(0.7) ? { rank: random.below(rankCount(shape.context)) } : {};
  const [from, to] = random.chance(0.5) ? [context, generation] : [generation, context];
  const atMs = random.real(0, ARRIVALS_MS + 200);
  const restartAfterMs = random.chance(0.75) ? random.real(1, 2500) : null;
  switch (random.below(15)) {
    case 0:
      return { kind: 'loss', probability: random.real(0.02, 0.5), ...window };
    case 1:
      return { kind: 'duplicate', probability: random.real(0.05, 1), ...window };
    case 2:
      return { kind: 'delay', probability: random.real(0.05, 0.8), maxMs: random.real(1, 900), ...window };
    case 3:
      return { kind: 'truncate', probability: random.real(0.02, 0.3), ...window };
    case 4:
      return { kind: 'partition', from, to, ...window };
    case 5:
    case 6:
      return {
        kind: 'frame',
        type: random.pick(REPEATED),
        skip: random.below(12),
        count: random.between(1, 4),
        copies: random.chance(0.6) ? 0 : random.between(1, 3),
        delayMs: random.chance(0.5) ? 0 : random.real(0, 2000),
      };
    case 7:
      return { kind: 'break', from, to, atMs };
    case 8:
      return {
        kind: 'crash',
        host,
        atMs,
        restartAfterMs,
        noticed: random.chance(0.7),
        ...oneRank,
        ...(isOne && random.chance(0.4) ? { aloneFirst: true } : {}),
      };
    case 9:
      return { kind: 'shutdown', host, atMs, restartAfterMs };
    case 10:
      return {
        kind: 'stop',
        host,
        atMs,
        ms: random.chance(0.6) ? random.real(5, 1500) : random.real(1500, 4500),
        ...oneRank,
      };
    case 11:
      return { kind: 'jump', host, atMs, ms: random.real(5, 4000), ...oneRank };
    case 12:
    case 13:
      return {
        kind: 'transfers',
        context: context.index,
        fate: random.pick(['transfer', 'refuse', 'fail', 'fail-undrained', 'fail-undrained', 'hang', 'never'] as const),
        probability: random.pick([0.1, 0.5, 1]),
        skip: random.below(20),
        count: random.between(1, 6),
        durationMs: random.chance(0.5) ? random.real(0.1, 5) : random.real(5, 900),
        tailMs: random.real(10, 1800),
        ...writer,
      };
    default:
      return {
        kind: 'forward',
        host: context,
        skip: random.below(20),
        how: random.pick(['enqueue', 'device']),
        ...writer,
      };
  }
}
