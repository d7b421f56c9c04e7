import type {
  CloseReport,
  Completion,
  DrainedNotice,
  FragmentTable,
  PathExplanation,
  PeerHandle,
  Pool,
  ReadyEvent,
  SliceSubmission,
  TransferAgent,
} from '../../../agent/transfer-agent.js';
import type { Fragment, PageTable } from '../../../mapping/index.js';

const ADDRESS_STEP = 1 << 30;
const PATH: PathExplanation = { path: 'host', reason: 'nothing is moved' };

/**
 * Role: an agent that moves nothing and is done at once, so that what is left is what the JavaScript thread does for a slice.
 * Ordering: completions come when `flush` is called, in the order of submission.
 */
export class InstantAgent implements TransferAgent {
  readonly name: string;
  readonly kind = 'sim';
  readonly #now: () => number;
  readonly #bytesPerPair = new Map<FragmentTable, number>();
  #nextAddress = ADDRESS_STEP;
  #nextHandle = 1;
  #done: Completion[] = [];
  #listener: (batch: readonly (Completion | DrainedNotice)[]) => void = () => {};

  constructor(name: string, now: () => number) {
    this.name = name;
    this.#now = now;
  }

  async allocatePool({ sizeBytes }: { readonly sizeBytes: number }): Promise<Pool> {
    const base = this.#nextAddress;
    this.#nextAddress += Math.ceil(sizeBytes / ADDRESS_STEP) * ADDRESS_STEP;
    return { base, sizeBytes };
  }

  writeBytes(): void {}

  readBytes(_: number, length: number): Uint8Array {
    return new Uint8Array(length);
  }

  async metadata(): Promise<Uint8Array> {
    return new Uint8Array(8);
  }

  async addPeer(): Promise<PeerHandle> {
    return this.#nextHandle++ as PeerHandle;
  }

  async removePeer(): Promise<void> {}

  prepareFragments(_: PeerHandle, __: PageTable, ___: PageTable, fragments: readonly Fragment[]): FragmentTable {
    const table = this.#nextHandle++ as FragmentTable;
    this.#bytesPerPair.set(
      table,
      fragments.reduce((sum, { bytes, count }) => sum + bytes * count, 0),
    );
    return table;
  }

  createEvent(): ReadyEvent {
    return { handle: this.#nextHandle++, signal: () => {}, fail: () => {} };
  }

  submit({ id, groups }: SliceSubmission): void {
    let bytes = 0;
    for (const { fragments, slotPairs } of groups)
      bytes += (this.#bytesPerPair.get(fragments) ?? 0) * (slotPairs.length / 2);
    const now = this.#now();
    this.#done.push({
      kind: 'completion',
      submission: id,
      status: 'transferred',
      bytes,
      drained: true,
      postedAtMs: now,
      finishedAtMs: now,
      error: null,
    });
  }

  cancel(): void {}

  onCompletions(listener: (batch: readonly (Completion | DrainedNotice)[]) => void): void {
    this.#listener = listener;
  }

  explain(): PathExplanation {
    return PATH;
  }

  async close(): Promise<CloseReport> {
    return { drained: true, outstanding: 0 };
  }

  flush(): void {
    if (this.#done.length === 0) return;
    const batch = this.#done;
    this.#done = [];
    this.#listener(batch);
  }
}
