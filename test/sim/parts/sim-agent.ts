import type {
  CloseReport,
  CompletionStatus,
  FragmentTable,
  NoteStats,
  PathExplanation,
  PeerHandle,
  Pool,
  ReadyEvent,
  SliceSubmission,
  SubmissionNotice,
  TransferAgent,
} from '../../../src/agent/transfer-agent.js';
import { ArgumentError, TransportError } from '../../../src/errors.js';
import type { PageTable } from '../../../src/mapping/page-table.js';
import type { Fragment } from '../../../src/mapping/transfer-plan.js';
import type { Random } from '../core/random.js';
import type { SimProcess } from '../core/scheduler.js';
import type { Arena } from './arena.js';
import { Memory } from './memory.js';
import type { SimFabric } from './sim-fabric.js';
import { SimNotes } from './sim-notes.js';

/** What happens to one submission once it is posted. */
export interface TransferFate {
  readonly kind: 'transfer' | 'refuse' | 'fail' | 'fail-undrained' | 'hang' | 'never';
  /** From post to the last byte. */
  readonly durationMs: number;
  /** 'fail-undrained': how long bytes may still land after the failure. 'hang': until it ends. */
  readonly tailMs: number;
}

/** How long a transfer that never ends lasts: beyond every clock. */
export const NEVER_MS = 26_000;

/** Says who may touch a page; the server that owns the memory answers. */
export interface MemoryGuard {
  /** Who holds the memory at `address` for a transfer now, or null. */
  holder(address: number): number | null;
  /** A transfer reads; the text says why it must not, or null. */
  read(address: number): string | null;
  /** A transfer writes for `holder`. 'fenced': the accepted risk of a release without proof, nothing is written. */
  write(address: number, sizeBytes: number, holder: number | null): 'ok' | 'fenced' | { readonly wrong: string };
}

interface Bound {
  readonly peer: PeerHandle;
  readonly local: PageTable;
  readonly remote: PageTable;
  readonly fragments: readonly Fragment[];
}

interface Move {
  readonly from: number;
  readonly to: number;
  readonly sizeBytes: number;
  readonly holder: number | null;
}

interface Work {
  readonly submission: SliceSubmission;
  readonly target: string;
  readonly moves: readonly Move[];
  readonly pairs: number;
  state: 'queued' | 'posted' | 'ended' | 'drained';
  cancelled: boolean;
  landed: number;
  bytes: number;
  postedAtMs: number | null;
  fate: TransferFate | null;
  /** Bounced: its region at the receiver, and what was gathered from the pages when it was posted. */
  region: Region | null;
}

interface Region {
  readonly arena: Arena;
  readonly bytes: number;
  readonly gathered: readonly Uint32Array[];
}

class HostEvent implements ReadyEvent {
  readonly handle: number;
  readonly #changed: () => void;
  state: 'pending' | 'signalled' | 'failed' = 'pending';
  message = '';

  constructor(handle: number, changed: () => void) {
    this.handle = handle;
    this.#changed = changed;
  }

  signal(): void {
    this.state = 'signalled';
    this.#changed();
  }

  fail(message: string): void {
    this.state = 'failed';
    this.message = message;
    this.#changed();
  }
}

/**
 * Role: a TransferAgent of the simulated machine room. Bytes move when the scheduler says so, page by page.
 * Ordering: submissions of a flow run one after another, flows side by side; completions come as events of the process, in batches.
 * Ownership: what is posted goes on when its process stops or dies, as a network adapter would.
 */
export class SimAgent implements TransferAgent {
  readonly kind = 'sim';
  readonly name: string;
  readonly memory = new Memory();
  readonly process: SimProcess;
  /** Writers bounce through it; null: they write pages. */
  arena: Arena | null = null;
  readonly #onRoom = (): void => this.#pumpSoon();
  guard: MemoryGuard = { holder: () => null, read: () => null, write: () => 'ok' };
  /** When the process died; bytes under way land a little longer. */
  diedAtMs: number | null = null;
  readonly #fabric: SimFabric;
  readonly #random: Random;
  readonly #peers = new Map<PeerHandle, string>();
  readonly #tables: Bound[] = [];
  readonly #flows = new Map<number, Work[]>();
  readonly #live = new Map<number, Work>();
  /** Some machines have no lane for notes. */
  carriesNotes = true;
  readonly #notes: SimNotes;
  readonly #watched = new Map<string, string>();
  #onNote: (peerId: string, note: Uint8Array) => void = () => {};
  #onNoteSoon: (peerId: string, note: Uint8Array) => void = () => {};
  #batch: SubmissionNotice[] = [];
  #listener: (batch: readonly SubmissionNotice[]) => void = () => {};
  #pumpPending = false;
  #nextPeer = 1;
  #nextEvent = 1;
  #closed = false;

  constructor(name: string, process: SimProcess, fabric: SimFabric, random: Random) {
    this.name = name;
    this.process = process;
    this.#fabric = fabric;
    this.#random = random;
    this.#notes = new SimNotes(
      (notice) => this.#report(notice),
      // A dead process sends nothing, whatever its hardware still does.
      (target, bytes) => this.diedAtMs === null && fabric.sendNote(this, target, bytes),
    );
  }

  /** Peers whose memory is mapped here. */
  get peerCount(): number {
    return this.#peers.size;
  }

  /** Submissions that may still touch memory. */
  get liveCount(): number {
    return this.#live.size;
  }

  allocatePool(spec: { readonly sizeBytes: number }): Promise<Pool> {
    return Promise.resolve({ base: this.memory.allocate(spec.sizeBytes), sizeBytes: spec.sizeBytes });
  }

  writeBytes(address: number, bytes: Uint8Array): void {
    this.memory.bytes(address, bytes.length).set(bytes);
  }

  readBytes(address: number, length: number): Uint8Array {
    return this.#fabric.room.copy(this.memory.bytes(address, length));
  }

  metadata(): Promise<Uint8Array> {
    return Promise.resolve(new TextEncoder().encode(this.name));
  }

  addPeer(metadata: Uint8Array, peerId: string): Promise<PeerHandle> {
    const name = new TextDecoder().decode(metadata);
    return new Promise((resolve, reject) => {
      this.#fabric.scheduler.at(this.#random.real(0.2, 3), this.process, () => {
        if (this.#fabric.agent(name) === undefined) {
          reject(new TransportError(`${peerId}: no agent '${name}'`, { peer: peerId, drained: true }));
          return;
        }
        const handle = this.#nextPeer++ as PeerHandle;
        this.#peers.set(handle, name);
        resolve(handle);
      });
    });
  }

  removePeer(peer: PeerHandle): Promise<void> {
    this.#peers.delete(peer);
    for (const [id, work] of this.#live) {
      if (work.submission.peer !== peer) continue;
      this.#notes.drop(id);
      if (work.state === 'queued') this.#end(work, 'failed', true, new TransportError('the peer was removed'));
    }
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
    return new HostEvent(this.#nextEvent++, () => this.#pumpSoon());
  }

  submit(submission: SliceSubmission): void {
    const target = this.#peers.get(submission.peer);
    if (target === undefined || this.#closed) throw new ArgumentError(`${this.name}: unknown peer ${submission.peer}`);
    if (this.#live.has(submission.id))
      throw new ArgumentError(`${this.name}: submission id ${submission.id} is in use`);
    if (submission.note !== undefined) this.#notes.check(submission.note);
    const moves = this.#moves(submission, target);
    const pairs = submission.groups.reduce((sum, group) => sum + group.slotPairs.length / 2, 0);
    const work: Work = {
      submission,
      target,
      moves,
      pairs,
      state: 'queued',
      cancelled: false,
      landed: 0,
      bytes: 0,
      postedAtMs: null,
      fate: null,
      region: null,
    };
    this.#live.set(submission.id, work);
    const flow = this.#flows.get(submission.flow);
    if (flow === undefined) this.#flows.set(submission.flow, [work]);
    else flow.push(work);
    if (submission.note !== undefined) {
      this.#fabric.announceNote(this, target, submission.note.bytes);
      this.#notes.arm(submission.id, target, submission.note, (id) => {
        const other = this.#live.get(id);
        return other?.target === target && !other.cancelled && other.state !== 'ended';
      });
    }
    this.#pumpSoon();
  }

  /** Ends of processes are not told: it is as if each ran elsewhere. Their notes are heard. */
  watchPeer(metadata: Uint8Array, peerId: string): Promise<boolean> {
    this.#watched.set(new TextDecoder().decode(metadata), peerId);
    return Promise.resolve(true);
  }

  unwatchPeer(peerId: string): void {
    for (const [name, watched] of this.#watched) if (watched === peerId) this.#watched.delete(name);
  }

  noteStats(): NoteStats {
    return this.#notes.stats;
  }

  onNote(listener: (peerId: string, note: Uint8Array) => void): void {
    this.#onNote = listener;
  }

  onNoteSoon(listener: (peerId: string, note: Uint8Array) => void): void {
    this.#onNoteSoon = listener;
  }

  hearNoteSoon(from: string, bytes: Uint8Array): void {
    const peerId = this.#watched.get(from);
    if (peerId !== undefined) this.#onNoteSoon(peerId, bytes);
  }

  /** Another agent says something; only of one that is watched it is known who that is. */
  hearNote(from: string, bytes: Uint8Array): void {
    const peerId = this.#watched.get(from);
    if (peerId === undefined) return;
    this.#notes.heard();
    this.#onNote(peerId, bytes);
  }

  cancel(id: number): void {
    const work = this.#live.get(id);
    if (work === undefined) return;
    this.#notes.drop(id);
    work.cancelled = true;
    this.#pumpSoon();
  }

  onCompletions(listener: (batch: readonly SubmissionNotice[]) => void): void {
    this.#listener = listener;
  }

  explain(): PathExplanation {
    return { path: 'host', reason: 'simulated' };
  }

  close(deadlineMs: number): Promise<CloseReport> {
    this.#closed = true;
    for (const [id, work] of this.#live) {
      this.#notes.drop(id);
      work.cancelled = true;
    }
    this.#pumpSoon();
    const endsAt = this.#fabric.scheduler.now + deadlineMs;
    return new Promise((resolve) => {
      const look = (): void => {
        if (this.#live.size > 0 && this.#fabric.scheduler.now < endsAt) {
          this.#fabric.scheduler.at(5, this.process, look);
          return;
        }
        this.#fabric.remove(this.name);
        resolve({ drained: this.#live.size === 0, outstanding: this.#live.size });
      };
      look();
    });
  }

  #moves({ groups }: SliceSubmission, target: string): Move[] {
    const guard = this.#fabric.agent(target)?.guard;
    const moves: Move[] = [];
    for (const { fragments, slotPairs } of groups) {
      const table = this.#tables[fragments];
      if (table === undefined) throw new ArgumentError(`unknown fragment table ${fragments}`);
      for (const { srcPool, srcOffset, srcStride, dstPool, dstOffset, dstStride, bytes, count } of table.fragments) {
        const source = table.local.pools[srcPool];
        const destination = table.remote.pools[dstPool];
        if (source === undefined || destination === undefined) throw new ArgumentError('fragment names a missing pool');
        for (let i = 0; i < slotPairs.length; i += 2) {
          const from = source.base + (slotPairs[i] as number) * source.slotStride + srcOffset;
          const to = destination.base + (slotPairs[i + 1] as number) * destination.slotStride + dstOffset;
          const holder = guard?.holder(to) ?? null;
          for (let piece = 0; piece < count; piece++)
            moves.push({ from: from + piece * srcStride, to: to + piece * dstStride, sizeBytes: bytes, holder });
        }
      }
    }
    return moves;
  }

  #pumpSoon(): void {
    if (this.#pumpPending) return;
    this.#pumpPending = true;
    this.#fabric.scheduler.at(
      this.#random.real(0.01, 0.1),
      this.process,
      () => {
        this.#pumpPending = false;
        this.#pump();
      },
      'hardware',
    );
  }

  #pump(): void {
    for (const flow of this.#flows.values()) {
      for (const work of [...flow]) {
        if (work.cancelled && work.state === 'queued') this.#end(work, 'cancelled', true, null);
        // Its pages are not touched any more, whatever its region waits for.
        else if (work.cancelled && work.region !== null) this.#end(work, 'cancelled', true, null);
      }
      const head = flow[0];
      if (head === undefined || head.state !== 'queued') continue;
      const event = head.submission.after as HostEvent | null;
      if (event?.state === 'pending') continue;
      if (event?.state === 'failed') this.#end(head, 'failed', true, new TransportError(event.message));
      else this.#post(head);
    }
    for (const [id, flow] of this.#flows) if (flow.length === 0) this.#flows.delete(id);
  }

  #post(work: Work): void {
    const { scheduler } = this.#fabric;
    if (!this.#takesRegion(work)) return;
    const fate = this.#fabric.fateOf(this);
    work.state = 'posted';
    work.fate = fate;
    this.#fabric.posted(this, work.pairs, fate);
    if (fate.kind === 'refuse') {
      this.#giveRegion(work);
      this.#end(work, 'failed', true, new TransportError('the transport refused the post', { drained: true }));
      return;
    }
    work.postedAtMs = this.process.now();
    const half = fate.durationMs * this.#random.next();
    if (work.region === null)
      scheduler.at(half, null, () => this.#land(work, Math.ceil(work.moves.length / 2)), 'hardware');
    scheduler.at(fate.durationMs, null, () => this.#arrive(work, fate), 'hardware');
  }

  /** False: it waits for room. What would never fit is written to the pages. */
  #takesRegion(work: Work): boolean {
    const arena = this.#fabric.agent(work.target)?.arena ?? null;
    const bytes = work.moves.reduce((sum, move) => sum + move.sizeBytes, 0);
    if (arena === null || !arena.fits(bytes)) return true;
    if (!arena.take(bytes, this.#onRoom)) return false;
    const gathered = work.moves.map(({ from, sizeBytes }) => {
      const wrong = this.guard.read(from);
      if (wrong !== null) this.#fabric.violation('I1 read', `${this.name}: ${wrong}`);
      return this.memory.words(from, sizeBytes)?.slice() ?? new Uint32Array(0);
    });
    work.region = { arena, bytes, gathered };
    // From here on the pages are others', whatever becomes of the region.
    this.#report({ kind: 'released', submission: work.submission.id });
    return true;
  }

  #giveRegion(work: Work): void {
    const { region } = work;
    work.region = null;
    region?.arena.give(region.bytes);
  }

  /** The end of what was posted to a region: scattered, unless somebody has given up on it; then the region is free. */
  #arriveInRegion(work: Work, fate: TransferFate): void {
    const { scheduler } = this.#fabric;
    const goesOn = {
      transfer: 0,
      refuse: 0,
      fail: 0,
      'fail-undrained': fate.tailMs,
      hang: fate.tailMs,
      never: NEVER_MS,
    };
    const fails = fate.kind === 'fail' || fate.kind === 'fail-undrained';
    // Only the region may still be written: the pages are out of it.
    if (fails) this.#end(work, 'failed', true, new TransportError('the transport failed'));
    scheduler.at(
      goesOn[fate.kind] + this.#random.real(0.01, 0.5),
      null,
      () => {
        if (work.state === 'posted' && fate.kind !== 'never') {
          this.#land(work, work.moves.length);
          this.#end(work, 'transferred', true, null);
        } else this.#end(work, 'failed', true, new TransportError('it never ended'));
        this.#giveRegion(work);
      },
      'hardware',
    );
  }

  /** The end of a posted submission, or of the part that its fate lets happen. */
  #arrive(work: Work, fate: TransferFate): void {
    const { scheduler } = this.#fabric;
    if (work.region !== null && this.#fabric.agent(work.target) !== undefined) {
      this.#arriveInRegion(work, fate);
      return;
    }
    if (this.#fabric.agent(work.target) === undefined) {
      // The other process is gone: the transport finds out after a while, and then nothing is under way.
      const error = new TransportError('the peer is gone', { drained: true });
      scheduler.at(this.#random.real(1, 200), null, () => this.#end(work, 'failed', true, error), 'hardware');
      return;
    }
    switch (fate.kind) {
      case 'transfer':
      case 'refuse':
        this.#land(work, work.moves.length);
        this.#end(work, 'transferred', true, null);
        break;
      case 'fail':
        this.#end(work, 'failed', true, new TransportError('the transport failed after some descriptors'));
        break;
      case 'fail-undrained':
        this.#end(work, 'failed', false, new TransportError('the transport failed and is still writing'));
        scheduler.at(fate.tailMs * this.#random.next(), null, () => this.#land(work, work.moves.length), 'hardware');
        scheduler.at(fate.tailMs, null, () => this.#drained(work), 'hardware');
        break;
      case 'hang':
        scheduler.at(
          fate.tailMs,
          null,
          () => {
            if (!work.cancelled) this.#land(work, work.moves.length);
            this.#end(work, work.cancelled ? 'cancelled' : 'transferred', true, null);
          },
          'hardware',
        );
        break;
      case 'never':
        // Beyond every clock; then the simulated hardware gives up, so that a run has an end.
        scheduler.at(
          NEVER_MS,
          null,
          () => this.#end(work, 'failed', true, new TransportError('it never ended')),
          'hardware',
        );
        break;
    }
  }

  #land(work: Work, upTo: number): void {
    const { diedAtMs } = this;
    const { scheduler } = this.#fabric;
    if (diedAtMs !== null && scheduler.now > diedAtMs + this.#fabric.landsAfterDeathMs) return;
    if (work.state === 'drained') {
      this.#fabric.violation('agent', 'bytes land after the submission drained');
      return;
    }
    const target = this.#fabric.agent(work.target);
    if (target === undefined) return;
    for (; work.landed < upTo; work.landed++) {
      const move = work.moves[work.landed] as Move;
      if (!this.memory.has(move.from, move.sizeBytes) || !target.memory.has(move.to, move.sizeBytes)) {
        this.#fabric.violation('I3 address', `${this.name} -> ${target.name}: an address is in no pool`);
        continue;
      }
      if (diedAtMs === null && work.region === null) {
        const wrong = this.guard.read(move.from);
        if (wrong !== null) this.#fabric.violation('I1 read', `${this.name}: ${wrong}`);
      }
      const verdict = target.guard.write(move.to, move.sizeBytes, move.holder);
      if (verdict === 'fenced') continue;
      if (verdict !== 'ok') this.#fabric.violation('I1 write', `${this.name} -> ${target.name}: ${verdict.wrong}`);
      const gathered = work.region?.gathered[work.landed];
      if (gathered === undefined) this.memory.copy(move.from, target.memory, move.to, move.sizeBytes);
      else target.memory.words(move.to, move.sizeBytes)?.set(gathered);
      work.bytes += move.sizeBytes;
    }
    this.#fabric.landed(this, work.landed);
  }

  #end(work: Work, status: CompletionStatus, drained: boolean, error: TransportError | null): void {
    if (work.state === 'ended' || work.state === 'drained') return;
    work.state = drained ? 'drained' : 'ended';
    const flow = this.#flows.get(work.submission.flow);
    flow?.splice(flow.indexOf(work), 1);
    if (drained) this.#live.delete(work.submission.id);
    const done = status === 'cancelled' && work.landed === work.moves.length && work.landed > 0;
    if (status === 'transferred') this.#notes.transferred(work.submission.id);
    else this.#notes.drop(work.submission.id);
    this.#report({
      kind: 'completion',
      submission: work.submission.id,
      status: done ? 'transferred' : status,
      bytes: work.bytes,
      drained,
      postedAtMs: work.postedAtMs,
      finishedAtMs: this.process.now(),
      error,
    });
    if (flow !== undefined && flow.length > 0) this.#pumpSoon();
  }

  #drained(work: Work): void {
    work.state = 'drained';
    this.#live.delete(work.submission.id);
    this.#report({ kind: 'drained', submission: work.submission.id });
  }

  #report(notice: SubmissionNotice): void {
    this.#batch.push(notice);
    if (this.#batch.length > 1) return;
    this.#fabric.scheduler.at(this.#random.real(0.005, 0.3), this.process, () => {
      const batch = this.#batch;
      this.#batch = [];
      this.#listener(batch);
    });
  }
}
