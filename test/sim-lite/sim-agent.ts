import type {
  CloseReport,
  Completion,
  FragmentTable,
  PathExplanation,
  PeerHandle,
  Pool,
  ReadyEvent,
  SliceSubmission,
  SubmissionNotice,
  TransferAgent,
} from '../../src/agent/transfer-agent.js';
import type { Clock } from '../../src/clock.js';
import { ArgumentError, TransportError } from '../../src/errors.js';
import type { PageTable } from '../../src/mapping/page-table.js';
import type { Fragment } from '../../src/mapping/transfer-plan.js';

/** What happens to the next submission that becomes runnable. 'bounce': its pages are gathered, and it hangs. */
export type Script = 'transfer' | 'fail' | 'fail-undrained' | 'hang' | 'bounce';

interface Work {
  readonly submission: SliceSubmission;
  cancelled: boolean;
  /** Puts down what was gathered. */
  scatter?: () => number;
}

/**
 * Role: agents of one simulated machine room. Moves real bytes between real buffers when told to (`run`), with scripted faults.
 * Ordering: submissions of an agent run in the order they came; one whose event is pending is passed over.
 */
export class SimFabric {
  readonly clock: Clock;
  readonly #agents = new Map<string, SimAgent>();
  #nextBase = 0x10_0000;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  createAgent(name: string): SimAgent {
    const agent = new SimAgent(name, this);
    this.#agents.set(name, agent);
    return agent;
  }

  agent(name: string): SimAgent | undefined {
    return this.#agents.get(name);
  }

  /** Addresses are unique over all agents, so that a wrong address is never somebody's right one. */
  reserve(sizeBytes: number): number {
    const base = this.#nextBase;
    this.#nextBase += Math.ceil(sizeBytes / 4096) * 4096 + 0x10_0000;
    return base;
  }

  /** The agent's process dies: nothing it holds moves any more, and it answers nothing. */
  kill(name: string): void {
    this.#agents.delete(name);
  }
}

class SimEvent implements ReadyEvent {
  readonly handle: number;
  state: 'pending' | 'signalled' | 'failed' = 'pending';
  message = '';

  constructor(handle: number) {
    this.handle = handle;
  }

  signal(): void {
    this.state = 'signalled';
  }

  fail(message: string): void {
    this.state = 'failed';
    this.message = message;
  }
}

interface BoundTable {
  readonly peer: PeerHandle;
  readonly local: PageTable;
  readonly remote: PageTable;
  readonly fragments: readonly Fragment[];
}

export class SimAgent implements TransferAgent {
  readonly kind = 'sim';
  readonly name: string;
  /** Consumed one a submission; when empty, submissions transfer. */
  readonly scripts: Script[] = [];
  readonly submitted: SliceSubmission[] = [];
  readonly removedPeers: string[] = [];
  /** Called with every pair of slots whose pages move, when they move. */
  onMove: (sourceSlot: number, destinationSlot: number, fragments: FragmentTable) => void = () => {};
  readonly #fabric: SimFabric;
  readonly #pools: { readonly base: number; readonly bytes: Uint8Array }[] = [];
  readonly #peers = new Map<PeerHandle, string>();
  readonly #tables: BoundTable[] = [];
  #queue: Work[] = [];
  #hanging: Work[] = [];
  #undrained: number[] = [];
  #listener: (batch: readonly SubmissionNotice[]) => void = () => {};
  #nextPeer = 1;
  #nextEvent = 1;

  constructor(name: string, fabric: SimFabric) {
    this.name = name;
    this.#fabric = fabric;
  }

  allocatePool(spec: { readonly sizeBytes: number }): Promise<Pool> {
    const base = this.#fabric.reserve(spec.sizeBytes);
    this.#pools.push({ base, bytes: new Uint8Array(spec.sizeBytes) });
    return Promise.resolve({ base, sizeBytes: spec.sizeBytes });
  }

  bytesAt(address: number, length: number): Uint8Array {
    for (const { base, bytes } of this.#pools)
      if (address >= base && address + length <= base + bytes.length)
        return bytes.subarray(address - base, address - base + length);
    throw new ArgumentError(`${this.name}: [${address}, +${length}) is not in any pool`);
  }

  writeBytes(address: number, bytes: Uint8Array): void {
    this.bytesAt(address, bytes.length).set(bytes);
  }

  readBytes(address: number, length: number): Uint8Array {
    return Uint8Array.from(this.bytesAt(address, length));
  }

  metadata(): Promise<Uint8Array> {
    return Promise.resolve(new TextEncoder().encode(this.name));
  }

  addPeer(metadata: Uint8Array, peerId: string): Promise<PeerHandle> {
    const name = new TextDecoder().decode(metadata);
    if (this.#fabric.agent(name) === undefined)
      return Promise.reject(new TransportError(`${peerId}: no agent '${name}'`, { peer: peerId, drained: true }));
    const handle = this.#nextPeer++ as PeerHandle;
    this.#peers.set(handle, name);
    return Promise.resolve(handle);
  }

  removePeer(peer: PeerHandle): Promise<void> {
    const name = this.#peers.get(peer);
    if (name !== undefined) this.removedPeers.push(name);
    this.#peers.delete(peer);
    return Promise.resolve();
  }

  prepareFragments(
    peer: PeerHandle,
    local: PageTable,
    remote: PageTable,
    fragments: readonly Fragment[],
  ): FragmentTable {
    this.#tables.push({ peer, local, remote, fragments });
    return (this.#tables.length - 1) as FragmentTable;
  }

  createEvent(): ReadyEvent {
    return new SimEvent(this.#nextEvent++);
  }

  submit(submission: SliceSubmission): void {
    if (!this.#peers.has(submission.peer)) throw new ArgumentError(`${this.name}: unknown peer ${submission.peer}`);
    this.submitted.push(submission);
    this.#queue.push({ submission, cancelled: false });
  }

  cancel(id: number): void {
    for (const work of [...this.#queue, ...this.#hanging]) if (work.submission.id === id) work.cancelled = true;
  }

  onCompletions(listener: (batch: readonly SubmissionNotice[]) => void): void {
    this.#listener = listener;
  }

  explain(): PathExplanation {
    return { path: 'host', reason: 'simulated' };
  }

  close(): Promise<CloseReport> {
    const outstanding = this.#queue.length + this.#hanging.length;
    return Promise.resolve({ drained: outstanding === 0, outstanding });
  }

  /** Moves everything that can move, one batch of completions. Returns how many submissions ended. */
  run(): number {
    const batch: SubmissionNotice[] = [];
    const later: Work[] = [];
    for (const work of this.#queue) {
      const event = work.submission.after as SimEvent | null;
      if (work.cancelled) batch.push(this.#completion(work, 'cancelled', 0, true, null));
      else if (event?.state === 'pending') later.push(work);
      else if (event?.state === 'failed')
        batch.push(this.#completion(work, 'failed', 0, true, new TransportError(event.message)));
      else this.#runOne(work, batch);
    }
    this.#queue = later;
    if (batch.length > 0) this.#listener(batch);
    return batch.length;
  }

  /** What hung ends well (or as cancelled), what was undrained is proven drained. */
  release(): void {
    const batch: SubmissionNotice[] = [];
    for (const work of this.#hanging) {
      if (work.cancelled) batch.push(this.#completion(work, 'cancelled', 0, true, null));
      else batch.push(this.#completion(work, 'transferred', this.#arrive(work), true, null));
    }
    for (const submission of this.#undrained) batch.push({ kind: 'drained', submission });
    this.#hanging = [];
    this.#undrained = [];
    if (batch.length > 0) this.#listener(batch);
  }

  #runOne(work: Work, batch: SubmissionNotice[]): void {
    const script = this.scripts.shift() ?? 'transfer';
    if (script === 'hang') this.#hanging.push(work);
    else if (script === 'bounce') {
      work.scatter = this.#gather(work.submission);
      this.#hanging.push(work);
      batch.push({ kind: 'released', submission: work.submission.id });
    } else if (script === 'transfer') batch.push(this.#completion(work, 'transferred', this.#arrive(work), true, null));
    else {
      const drained = script === 'fail';
      if (!drained) this.#undrained.push(work.submission.id);
      batch.push(this.#completion(work, 'failed', 0, drained, new TransportError('scripted failure')));
    }
  }

  #completion(
    work: Work,
    status: Completion['status'],
    bytes: number,
    drained: boolean,
    error: TransportError | null,
  ): Completion {
    const now = this.#fabric.clock.now();
    const postedAtMs = status === 'cancelled' ? null : now;
    const submission = work.submission.id;
    return { kind: 'completion', submission, status, bytes, drained, postedAtMs, finishedAtMs: now, error };
  }

  #arrive(work: Work): number {
    return (work.scatter ?? this.#gather(work.submission))();
  }

  /** Reads the pages now. @returns what writes them at the target, and says how many bytes that were */
  #gather(submission: SliceSubmission): () => number {
    const pieces: { readonly to: number; readonly bytes: Uint8Array }[] = [];
    for (const { fragments, slotPairs } of submission.groups) {
      for (let i = 0; i < slotPairs.length; i += 2) this.onMove(slotPairs[i] ?? 0, slotPairs[i + 1] ?? 0, fragments);
      const table = this.#tables[fragments];
      if (table === undefined) throw new ArgumentError(`unknown fragment table ${fragments}`);
      for (const fragment of table.fragments) {
        const source = table.local.pools[fragment.srcPool];
        const destination = table.remote.pools[fragment.dstPool];
        if (source === undefined || destination === undefined) throw new ArgumentError('fragment names a missing pool');
        for (let i = 0; i < slotPairs.length; i += 2) {
          const from = source.base + (slotPairs[i] ?? 0) * source.slotStride + fragment.srcOffset;
          const to = destination.base + (slotPairs[i + 1] ?? 0) * destination.slotStride + fragment.dstOffset;
          for (let piece = 0; piece < fragment.count; piece += 1) {
            const bytes = this.readBytes(from + piece * fragment.srcStride, fragment.bytes);
            pieces.push({ to: to + piece * fragment.dstStride, bytes });
          }
        }
      }
    }
    return () => {
      const target = this.#fabric.agent(this.#peers.get(submission.peer) ?? '');
      for (const { to, bytes } of pieces) target?.writeBytes(to, bytes);
      return pieces.reduce((sum, { bytes }) => sum + bytes.length, 0);
    };
  }
}
