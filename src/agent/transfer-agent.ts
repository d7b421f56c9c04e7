import type { KvTransceiverError } from '../errors.js';
import type { PagePool, PageTable } from '../mapping/page-table.js';
import type { Fragment, TransferPlan } from '../mapping/transfer-plan.js';

/** A peer whose metadata was loaded. Valid until `removePeer`. */
export type PeerHandle = number & { readonly __peer: unique symbol };

/** Fragments bound to one peer's pools, checked against the memory both sides registered. Valid as long as the peer. */
export type FragmentTable = number & { readonly __fragmentTable: unique symbol };

/** Memory the agent owns and peers can reach. */
export interface Pool {
  readonly base: number;
  readonly sizeBytes: number;
}

/** Something a forward step signals when its pages are written. The progress thread polls it; JS never waits for it natively. */
export interface ReadyEvent {
  readonly handle: number;
  /** Settles an event that is signalled from the host. Device events are recorded on a stream instead. */
  signal(): void;
  /** The work before the event failed: every submission behind it fails with this text. */
  fail(message: string): void;
}

/** The part of a slice that one layer group contributes. */
export interface SubmissionGroup {
  readonly fragments: FragmentTable;
  /** Source slot, destination slot, ... as in GroupPlan. */
  readonly slotPairs: Int32Array;
}

/** One slice to one receiver. */
export interface SliceSubmission {
  /** Chosen by the caller, unique for the life of the agent, a safe integer. */
  readonly id: number;
  readonly peer: PeerHandle;
  /** Submissions of one flow run in order; flows take turns batch by batch. */
  readonly flow: number;
  readonly groups: readonly SubmissionGroup[];
  readonly after: ReadyEvent | null;
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
  readonly error: KvTransceiverError | null;
}

/** Follows a completion that was not drained, once nothing of it can touch memory any more. */
export interface DrainedNotice {
  readonly kind: 'drained';
  readonly submission: number;
}

/** Which path a plan takes to a peer, and why. */
export interface PathExplanation {
  readonly path: 'host' | 'rdma' | 'p2p' | 'bounce';
  readonly reason: string;
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

  /** Allocates zeroed memory, registered with the transport and resident (no page faults later). */
  allocatePool(spec: { readonly sizeBytes: number }): Promise<Pool>;
  /** Copies bytes into or out of a pool of this agent; for aux slots and tests, not for pages. */
  writeBytes(address: number, bytes: Uint8Array): void;
  readBytes(address: number, length: number): Uint8Array;

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

  createEvent(): ReadyEvent;

  /** @throws ArgumentError for a slot out of range or an unknown handle; the submission then does not exist */
  submit(submission: SliceSubmission): void;
  /** What is not posted yet is dropped; the completion comes when the rest has drained. Unknown ids are ignored. */
  cancel(submission: number): void;
  /** One listener, called with batches. */
  onCompletions(listener: (batch: readonly (Completion | DrainedNotice)[]) => void): void;

  explain(peer: PeerHandle, plan: TransferPlan): PathExplanation;
  /** Idempotent. Stops new work, lets posted work end, then releases everything. */
  close(deadlineMs: number): Promise<CloseReport>;
}

export type { PagePool };
