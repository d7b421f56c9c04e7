import type { Journal } from '../core/journal.js';
import { Random } from '../core/random.js';
import type { Scheduler, SimProcess } from '../core/scheduler.js';
import { FrameRoom } from './frame-room.js';
import { SimAgent, type TransferFate } from './sim-agent.js';
import { type NoteFate, noteFate } from './sim-notes.js';

export interface FabricFaults {
  /** What happens to the next submission that this agent posts. */
  fateOf(agent: SimAgent, random: Random): TransferFate;
  /** What becomes of the next note; null: there is no way. Default: one in twenty has no way, the others have their `noteFate`. */
  noteFateOf?(random: Random): NoteFate | null;
  /** This agent has said something to another one's, which may get lost. */
  noted?(agent: SimAgent, bytes: Uint8Array): void;
}

/** Bytes of a dead process land this much longer (measured elsewhere: some ten milliseconds after kill -9). */
const LANDS_AFTER_DEATH_MS = 60;

const ANNOUNCED_AFTER_MS = 0.005;

/** Role: where agents find each other, and what the network between them does to their transfers. */
export class SimFabric {
  readonly scheduler: Scheduler;
  readonly landsAfterDeathMs = LANDS_AFTER_DEATH_MS;
  readonly #journal: Journal;
  readonly #seed: number;
  readonly #agents = new Map<string, SimAgent>();
  readonly #fates = new Map<string, Random>();
  readonly #notes = new Map<string, Random>();
  /** For what agents read and say. */
  readonly room = new FrameRoom();
  #faults: FabricFaults = { fateOf: (_, random) => ordinary(random) };
  #nextAgent = 0;
  movedPieces = 0;
  notesSent = 0;

  constructor(scheduler: Scheduler, journal: Journal, seed: number) {
    this.scheduler = scheduler;
    this.#journal = journal;
    this.#seed = seed;
  }

  setFaults(faults: FabricFaults): void {
    this.#faults = faults;
  }

  createAgent(name: string, process: SimProcess): SimAgent {
    const number = this.#nextAgent++;
    const agent = new SimAgent(name, process, this, new Random(this.#seed, 2, number));
    const notes = new Random(this.#seed, 11, number);
    agent.carriesNotes = notes.chance(0.8);
    this.#agents.set(name, agent);
    this.#notes.set(name, notes);
    this.#fates.set(name, new Random(this.#seed, 3, number));
    return agent;
  }

  agent(name: string): SimAgent | undefined {
    return this.#agents.get(name);
  }

  /** The process died: nobody reaches its memory any more, what it had posted goes on for a moment. */
  kill(agent: SimAgent): void {
    agent.diedAtMs = this.scheduler.now;
    this.#agents.delete(agent.name);
  }

  remove(name: string): void {
    this.#agents.delete(name);
  }

  fateOf(agent: SimAgent): TransferFate {
    return this.#faults.fateOf(agent, this.#fates.get(agent.name) as Random);
  }

  /** Takes its course whatever becomes of the note itself. */
  announceNote(from: SimAgent, to: string, bytes: Uint8Array): void {
    const target = this.#agents.get(to);
    if (target?.carriesNotes !== true) return;
    this.scheduler.at(ANNOUNCED_AFTER_MS, target.process, () => target.hearNoteSoon(from.name, this.room.copy(bytes)));
  }

  /** @returns false when there is no way, as far as the sender can tell */
  sendNote(from: SimAgent, to: string, bytes: Uint8Array): boolean {
    const random = this.#notes.get(from.name) as Random;
    const target = this.#agents.get(to);
    if (target === undefined || !target.carriesNotes) return false;
    const fate = (this.#faults.noteFateOf ?? ordinaryNote)(random);
    if (fate === null) return false;
    this.notesSent += 1;
    this.#faults.noted?.(from, bytes);
    this.#journal.note(15, bytes.length, fate.length, () => `${from.name} notes to ${to} (${fate.length} times)`);
    for (const delayMs of fate)
      this.scheduler.at(delayMs, target.process, () => target.hearNote(from.name, this.room.copy(bytes)));
    return true;
  }

  posted(agent: SimAgent, pairs: number, fate: TransferFate): void {
    this.#journal.note(3, pairs, fate.durationMs * 1024, () => {
      const what = fate.kind === 'transfer' ? `${fate.durationMs.toFixed(1)} ms` : `fate: ${fate.kind}`;
      return `${agent.name} posts ${pairs} pages (${what})`;
    });
  }

  landed(agent: SimAgent, pieces: number): void {
    this.movedPieces += pieces;
    this.#journal.note(4, pieces, 0, () => `${agent.name} has written ${pieces} pieces`);
  }

  violation(rule: string, text: string): void {
    this.#journal.violation(rule, text);
  }
}

function ordinaryNote(random: Random): NoteFate | null {
  return random.chance(0.05) ? null : noteFate(random);
}

export function ordinary(random: Random): TransferFate {
  return { kind: 'transfer', durationMs: random.real(0.05, 2), tailMs: 0 };
}
