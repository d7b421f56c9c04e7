import { Random } from '../core/random.js';
import type { SimAgent, TransferFate } from '../parts/sim-agent.js';
import { type FabricFaults, ordinary } from '../parts/sim-fabric.js';
import type { FrameFate, FrameInFlight } from '../parts/sim-network.js';
import type { Fault, Side } from '../plan.js';

export interface FaultPlaces {
  /** By rank. */
  readonly endpointsOf: (side: Side, index: number) => readonly string[];
}

type FaultOf<Kind extends Fault['kind']> = Extract<Fault, { kind: Kind }>;

/** Role: answers what the plan's faults do to one frame, one transfer or one forward. Each fault counts and draws for itself. */
export class FaultInjector implements FabricFaults {
  readonly #wires: ((frame: FrameInFlight) => FrameFate | null)[] = [];
  readonly #transfers: { readonly fault: FaultOf<'transfers'>; readonly random: Random; seen: number; met: number }[] =
    [];
  /** Forwards seen, by rank: the ranks of a group run the same ones. */
  readonly #forwards: { readonly fault: FaultOf<'forward'>; readonly seen: Map<number, number> }[] = [];

  constructor(seed: number, faults: readonly Fault[], places: FaultPlaces) {
    faults.forEach((fault, number) => {
      if (fault.kind === 'transfers')
        this.#transfers.push({ fault, random: new Random(seed, 5, number), seen: 0, met: 0 });
      else if (fault.kind === 'forward') this.#forwards.push({ fault, seen: new Map() });
      else {
        const wire = wireRule(fault, places);
        if (wire !== null) this.#wires.push(wire);
      }
    });
  }

  frame(frame: FrameInFlight): FrameFate | null {
    for (const wire of this.#wires) {
      const fate = wire(frame);
      if (fate !== null) return fate;
    }
    return null;
  }

  fateOf(agent: SimAgent, random: Random): TransferFate {
    const usual = ordinary(random);
    for (const state of this.#transfers) {
      const { fault } = state;
      if (!agent.name.startsWith(`context${fault.context}#`)) continue;
      if (fault.rank !== undefined && !agent.name.includes(`r${fault.rank}`)) continue;
      state.seen += 1;
      if (state.seen <= fault.skip || state.met >= fault.count || !state.random.chance(fault.probability)) continue;
      state.met += 1;
      return { kind: fault.fate, durationMs: fault.durationMs, tailMs: fault.tailMs };
    }
    return usual;
  }

  forward(side: Side, index: number, rank: number): 'enqueue' | 'device' | null {
    for (const { fault, seen } of this.#forwards) {
      if (fault.host.side !== side || fault.host.index !== index || (fault.rank ?? rank) !== rank) continue;
      const count = (seen.get(rank) ?? 0) + 1;
      seen.set(rank, count);
      if (count === fault.skip + 1) return fault.how;
    }
    return null;
  }
}

function wireRule(fault: Fault, places: FaultPlaces): ((frame: FrameInFlight) => FrameFate | null) | null {
  const inside = (window: { fromMs: number; toMs: number }, frame: FrameInFlight): boolean =>
    frame.atMs >= window.fromMs && frame.atMs < window.toMs;
  switch (fault.kind) {
    case 'loss':
      return (frame) =>
        inside(fault, frame) && frame.random.chance(fault.probability) ? { copies: 0, delayMs: 0 } : null;
    case 'duplicate':
      return (frame) =>
        inside(fault, frame) && frame.random.chance(fault.probability)
          ? { copies: 2, delayMs: frame.random.real(0, 2) }
          : null;
    case 'delay':
      return (frame) =>
        inside(fault, frame) && frame.random.chance(fault.probability)
          ? { copies: 1, delayMs: frame.random.real(0, fault.maxMs) }
          : null;
    case 'truncate':
      return (frame) =>
        inside(fault, frame) && frame.random.chance(fault.probability)
          ? { copies: 1, delayMs: 0, bytes: frame.bytes.slice(0, frame.random.below(frame.bytes.length)) }
          : null;
    case 'partition': {
      const from = places.endpointsOf(fault.from.side, fault.from.index);
      const to = places.endpointsOf(fault.to.side, fault.to.index);
      return (frame) =>
        inside(fault, frame) && from.includes(frame.from) && to.includes(frame.to) ? { copies: 0, delayMs: 0 } : null;
    }
    case 'frame': {
      let seen = 0;
      return (frame) => {
        if (frame.type !== fault.type) return null;
        seen += 1;
        const met = seen > fault.skip && seen <= fault.skip + fault.count;
        return met ? { copies: fault.copies, delayMs: fault.delayMs } : null;
      };
    }
    default:
      return null;
  }
}
