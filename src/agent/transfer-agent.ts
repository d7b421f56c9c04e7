import type { KvTransceiverError } from '../errors.js';
import type { PagePool, PageTable } from '../mapping/page-table.js';
import type { Fragment, TransferPlan } from '../mapping/transfer-plan.js';
import type { InboundGroup } from './bounce.js';
import type { BounceStats } from './bounce-stats.js';
import type { NoteStats } from './note-stats.js';

/** A peer whose metadata was loaded. Valid until `removePeer`. */
export type PeerHandle = number & { readonly __peer: unique symbol };

/** Fragments bound to one peer's pools, checked against the memory both sides registered. Valid as long as the peer. */
export type FragmentTable = number & { readonly __fragmentTable: unique symbol };

/** Memory that peers can reach: the agent's own, or an engine's that was registered. */
export interface Pool {
  readonly base: number;
  readonly sizeBytes: number;
  /** The GPU whose memory it is; absent = host memory. */
  readonly device?: number;
}

/** Memory that an engine allocated, anywhere inside one allocation. The engine keeps it until the agent has closed. */
export interface EngineMemory {
  readonly address: number;
  readonly sizeBytes: number;
  /** A GPU's number, as CUDA_VISIBLE_DEVICES has it. */
  readonly device: number;
}

/**
 * Something a forward step signals when its pages are written. An event of the host is settled by a call; a mark on a GPU's stream is waited
 * for by the GPU on the p2p and bounce paths, and asked for by the progress thread on the others. JS never waits for it natively.
 */
export interface ReadyEvent {
  readonly handle: number;
  /** Settles an event that is signalled from the host. Device events are recorded on a stream instead. */
  signal(): void;
  /**
   * The work before the event failed: every submission behind it fails with this text and counts no byte, also one that the GPU has queued
   * already, and one whose copy has run but was not reported yet. What was reported stays as it was.
   */
  fail(message: string): void;
}

/** The part of a slice that one layer group contributes. */
export interface SubmissionGroup {
  readonly fragments: FragmentTable;
  /** Source slot, destination slot, ... as in GroupPlan. */
  readonly slotPairs: Int32Array;
  /** What the receiver calls this group under the slice's ticket; default 0. */
  readonly key?: number;
}

/** One slice to one receiver. */
export interface SliceSubmission {
  /** Chosen by the caller, unique for the life of the agent, a safe integer. */
  readonly id: number;
  readonly peer: PeerHandle;
  /**
   * Submissions of one flow begin in order, and flows take turns batch by batch. On a GPU several may be under way at once and end in any
   * order: two that write the same bytes must not be.
   */
  readonly flow: number;
  readonly groups: readonly SubmissionGroup[];
  readonly after: ReadyEvent | null;
  /**
   * The receive that it belongs to, as its receiver registered it with `expectInbound`. Without one the slice is never bounced.
   */
  readonly ticket?: bigint;
  /** Told to the peer's agent as soon as all of it has arrived. Agents that do not `carryNotes` ignore it. */
  readonly note?: ArmedNote;
}

/**
 * What an agent says to a peer's agent by itself, once transfers have arrived: what its user would say next, without the way through this
 * thread and the control plane. It may get lost, so that its user still says it, and comes before or after anything else.
 */
export interface ArmedNote {
  /** 1 to 2,048 bytes. */
  readonly bytes: Uint8Array;
  /**
   * Earlier submissions to the same peer that must have transferred too. One that has ended already ends the note: how it ended is on its way
   * to this thread.
   */
  readonly also: readonly number[];
}

/**
 * What became of the note that came with a submission: one for each, before the completion that decided it. After `cancel` of one of its
 * submissions it is not sent any more, and this says so at once.
 */
export interface NoteOutcome {
  readonly kind: 'note';
  readonly submission: number;
  readonly isSent: boolean;
}

/** How a submission ended. */
export type CompletionStatus = 'transferred' | 'failed' | 'cancelled';

/** The one answer to each submission. */
export interface Completion {
  readonly kind: 'completion';
  readonly submission: number;
  readonly status: CompletionStatus;
  /** Bytes known to have arrived. */
  readonly bytes: number;
  /** False: something of this submission may still touch memory; a `drained` notice follows when that is over. */
  readonly drained: boolean;
  /** CLOCK_MONOTONIC ms; null when nothing was posted. */
  readonly postedAtMs: number | null;
  readonly finishedAtMs: number;
  /** How long the progress thread prepared and posted it, or prepared and launched its kernel. */
  readonly postingMs?: number;
  readonly error: KvTransceiverError | null;
}

/** Follows a completion that was not drained, once nothing of it can touch memory any more. */
export interface DrainedNotice {
  readonly kind: 'drained';
  readonly submission: number;
}

/**
 * Before the completion of a bounced submission: its source pages are free, whatever it still waits for. Each was gathered into the arena,
 * or what is still gathered of it is thrown away. Not every agent says so, and none does where the completion follows at once.
 */
export interface ReleasedNotice {
  readonly kind: 'released';
  readonly submission: number;
}

/** What an agent reports of submissions. */
export type SubmissionNotice = Completion | DrainedNotice | ReleasedNotice | NoteOutcome;

/** A way that pages can take. */
export type DataPath = 'host' | 'rdma' | 'p2p' | 'bounce';

/** One path, and what stands for or against it. */
export interface PathAlternative {
  readonly path: DataPath;
  readonly isAvailable: boolean;
  /** Why it is there, or is not. */
  readonly reason: string;
  /** By the cost model, from post to the last byte on an idle machine. */
  readonly estimatedUs: number;
}

/**
 * By what the bytes of a slice are moved on its path: `thread`, the agents' own threads; `descriptors`, NIXL, one descriptor per contiguous run;
 * `engines`, a GPU's copy engines; `bulk` and `registers`, its kernels.
 */
export type CopyMeans = 'thread' | 'descriptors' | 'engines' | 'bulk' | 'registers';

/** How a slice is copied, and why not faster. */
export interface CopyExplanation {
  readonly means: CopyMeans;
  /** What decides it; names the number of the page tables that stands in the way of a faster one. */
  readonly reason: string;
  /** What would let it go the faster way; null where nothing would. */
  readonly remedy: string | null;
}

/** Which path a plan takes to a peer, and why. */
export interface PathExplanation {
  readonly path: DataPath;
  readonly reason: string;
  /** Absent for a plan without slots, and from agents that copy in one way only. */
  readonly copy?: CopyExplanation;
  /** The other paths with their costs. */
  readonly alternatives?: readonly PathAlternative[];
  /** What this agent does another way than it might, as told through `onAdvice`. */
  readonly advice?: readonly string[];
}

/** What `TransferAgent.close` left. */
export interface CloseReport {
  /** False: transfers were still running at the deadline; their memory was kept mapped and registered on purpose. */
  readonly drained: boolean;
  readonly outstanding: number;
}

/**
 * Moves pages to peers. One native progress thread does all the work; no method waits for a peer, a device or the transport.
 */
export interface TransferAgent {
  /** Unique per incarnation: a restarted process is a new name. */
  readonly name: string;
  readonly kind: 'host' | 'nixl' | 'sim';
  /** Whether it has a bounce arena: slices should name their ticket, and receives be registered with `expectInbound`. Default: false. */
  readonly bounces?: boolean;
  /** Whether submissions may have notes. To a peer that none reaches they are not sent, and their outcome says so. Default: false. */
  readonly carriesNotes?: boolean;

  /**
   * Allocates zeroed memory, registered with the transport and resident (no page faults later). `device`: the GPU whose memory it is, as
   * CUDA_VISIBLE_DEVICES numbers them, the same for all pools of an agent; absent = host memory. After an error nothing of the pool is left.
   * @throws ArgumentError for a GPU that is not there, or another than the agent's
   * @throws ResourceError when there is not enough memory, or not enough of it can be locked; it may work later
   * @throws CapabilityError when the machine cannot do it (no driver, no kernels for this GPU, NIXL without CUDA), with the remedy
   */
  allocatePool(spec: { readonly sizeBytes: number; readonly device?: number }): Promise<Pool>;
  /**
   * Takes memory that an engine owns. After an error it can be offered again.
   * @throws ArgumentError when it is not device memory of this process, leaves its allocation, or overlaps what the agent has
   * @throws ResourceError when the GPU or the agent has no room for it; it may work later
   * @throws CapabilityError as `allocatePool` does
   */
  registerPool?(memory: EngineMemory): Promise<Pool>;
  /** Copies bytes into or out of a host pool of this agent; for aux slots and tests, not for pages. */
  writeBytes(address: number, bytes: Uint8Array): void;
  readBytes(address: number, length: number): Uint8Array;
  /** The same as `readBytes`, into memory of the caller's: allocating some costs more than what a few bytes are read for. */
  readInto?(address: number, bytes: Uint8Array): void;
  /** The same for host and device pools, off this thread. */
  writeMemory?(address: number, bytes: Uint8Array): Promise<void>;
  readMemory?(address: number, length: number): Promise<Uint8Array>;

  /** What a peer needs to write here. Covers every pool allocated so far. */
  metadata(): Promise<Uint8Array>;
  /**
   * @throws TransportError when the metadata cannot be loaded or the peer does not hand over its memory
   * @throws PeerLostError when the peer is gone already
   * @throws CapabilityError when the peer runs where this kind of agent cannot reach it
   */
  addPeer(metadata: Uint8Array, peerId: string): Promise<PeerHandle>;
  /** What was not posted to it fails; what was posted still ends and completes. Does not wait for that. Idempotent. */
  removePeer(peer: PeerHandle): Promise<void>;

  /** @throws ArgumentError when a fragment leaves its slot, or a pool leaves the memory that its side registered */
  prepareFragments(
    peer: PeerHandle,
    local: PageTable,
    remote: PageTable,
    fragments: readonly Fragment[],
  ): FragmentTable;

  /**
   * The table of what a peer writes here, for `expectInbound`; the same fragments in the same order as the peer's own
   * `prepareFragments`. This and the next two exist on agents that can bounce.
   * @throws ArgumentError as `prepareFragments` does
   */
  prepareInbound?(peer: PeerHandle, remote: PageTable, local: PageTable, fragments: readonly Fragment[]): FragmentTable;
  /**
   * Lets slices of `peer` under `ticket` be scattered into these slots, each by this side and nowhere else. Resolves when the peer may
   * be told. Once per peer and ticket.
   */
  expectInbound?(peer: PeerHandle, ticket: bigint, groups: readonly InboundGroup[]): Promise<void>;
  /** Resolves once nothing is scattered under the ticket any more: its pages are free, whatever the peer still does. Idempotent. */
  endInbound?(peer: PeerHandle, ticket: bigint): Promise<void>;

  createEvent(): ReadyEvent;

  /** @throws ArgumentError for a slot out of range or an unknown handle; the submission then does not exist */
  submit(submission: SliceSubmission): void;
  /**
   * What is not posted yet is dropped. Of what is posted, the p2p and bounce paths take back what has not begun and stop what has; the rest
   * ends. The completion says how: `cancelled`, or `transferred` where it was too late. Unknown ids are ignored.
   */
  cancel(submission: number): void;
  /** One listener, called with batches. */
  onCompletions(listener: (batch: readonly SubmissionNotice[]) => void): void;

  /**
   * Asks to hear, through `onPeerFenced`, when the process that published `metadata` has ended: nothing it started can write here
   * after that. From then on its agent's notes are heard. False when that cannot be told from here (another machine, another process
   * namespace).
   */
  watchPeer?(metadata: Uint8Array, peerId: string): Promise<boolean>;
  unwatchPeer?(peerId: string): void;
  /** One listener, called once for each watched peer. */
  onPeerFenced?(listener: (peerId: string) => void): void;
  /**
   * Before pages that peers wrote are read on a GPU: resolves when what a network card wrote there is visible to its kernels. Null
   * when this agent's memory needs no such care.
   */
  flushInbound?(): Promise<void> | null;
  /**
   * One listener for what falls back to another path, and for slices that are moved slower than they would be with other page tables or
   * settings (`CopyExplanation.remedy`; once for each peer and cause, at the first such slice). What was said before it came is said at once.
   */
  onAdvice?(listener: (message: string) => void): void;

  /**
   * One listener for notes of the agents of watched peers (`watchPeer`): what they say is that process's, as a frame on its own connection would
   * be.
   */
  onNote?(listener: (peerId: string, note: Uint8Array) => void): void;
  /**
   * One listener for notes that those agents mean to send within some milliseconds. What such a note says is not true yet, and may never be: it
   * is told so that it can be read ahead.
   */
  onNoteSoon?(listener: (peerId: string, note: Uint8Array) => void): void;
  /** Costs no round trip to the progress thread. */
  noteStats?(): NoteStats;

  /** What its arena and the slices through it do, as the progress thread last said; null without an arena. Costs no round trip. */
  bounceStats?(): BounceStats | null;

  /**
   * Which path native code takes for a plan under a ticket, what it costs by the same model, and why the others are not taken. Moves
   * nothing. The plan's fragments are those of `prepareFragments` for this peer, or equal ones; a plan without groups is judged by its counts.
   * @throws ArgumentError for an unknown peer, or fragments that were not prepared for it
   */
  explain(peer: PeerHandle, plan: TransferPlan): PathExplanation;
  /** Idempotent. Stops new work, lets posted work end, then releases everything. */
  close(deadlineMs: number): Promise<CloseReport>;
}

export type { BounceStats, InboundGroup, NoteStats, PagePool };
