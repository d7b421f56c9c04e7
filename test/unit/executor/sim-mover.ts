import type { PageMove, PageMover, PagesReady } from '../../../src/cache/index.js';
import type { PageTable } from '../../../src/mapping/index.js';
import type { CacheParts } from './served-pair.js';

/** Moves real bytes of simulated pools, in order, each batch some time after it was handed over. */
export class SimMover implements PageMover {
  readonly counts = { offload: 0, onboard: 0, copy: 0 };
  readonly #parts: CacheParts;
  readonly #delayMs: number;
  readonly #host = new Map<string, Uint8Array[]>();
  #last: Promise<void> = Promise.resolve();
  /** While it is set, a batch that is begun does not end: the device hangs. */
  #stall: Promise<void> | null = null;

  constructor(parts: CacheParts, delayMs: number) {
    this.#parts = parts;
    this.#delayMs = delayMs;
  }

  move(moves: readonly PageMove[]): PagesReady {
    const { agent, clock } = this.#parts;
    const event = agent.createEvent();
    const done = this.#last.then(async () => {
      await new Promise<void>((resolve) => void clock.setTimer(this.#delayMs, resolve));
      await this.#stall;
      for (const move of moves) this.#run(move);
      event.signal();
    });
    this.#last = done;
    return { event, done };
  }

  /** @returns lets everything go on */
  stall(): () => void {
    let resume = (): void => {};
    this.#stall = new Promise((resolve) => {
      resume = resolve;
    });
    return () => {
      this.#stall = null;
      resume();
    };
  }

  #run(move: PageMove): void {
    this.counts[move.kind] += 1;
    if (move.kind === 'offload') this.#host.set(`${move.group} ${move.hostSlot}`, this.#read(move.group, move.slot));
    else if (move.kind === 'copy') this.#write(move.group, move.toSlot, this.#read(move.group, move.fromSlot));
    else this.#write(move.group, move.slot, this.#host.get(`${move.group} ${move.hostSlot}`) as Uint8Array[]);
  }

  #read(group: number, slot: number): Uint8Array[] {
    return this.#places(group, slot).map(({ address, bytes }) => this.#parts.agent.readBytes(address, bytes).slice());
  }

  #write(group: number, slot: number, contents: readonly Uint8Array[]): void {
    this.#places(group, slot).forEach(({ address }, index) => {
      this.#parts.agent.writeBytes(address, contents[index] as Uint8Array);
    });
  }

  #places(group: number, slot: number): { readonly address: number; readonly bytes: number }[] {
    const { pools, layerGroups } = this.#parts.table;
    return (layerGroups[group]?.views ?? []).flatMap((view) =>
      view.layers.map(({ pool, offset, bytes }) => {
        const { base, slotStride } = pools[pool] as PageTable['pools'][number];
        return { address: base + slot * slotStride + offset, bytes };
      }),
    );
  }
}
