import { randomBytes } from 'node:crypto';
import { SystemClock } from '../clock.js';
import { checkDeadline } from '../deadline.js';
import { ArgumentError } from '../errors.js';
import type { PageTable } from '../mapping/page-table.js';
import type { Fragment, TransferPlan } from '../mapping/transfer-plan.js';
import { TurnBudget } from '../turn-budget.js';
import { type BounceOptions, bounceRecord, type InboundGroup, inboundRecords, resolveBounce } from './bounce.js';
import { type BounceStats, readBounceStats } from './bounce-stats.js';
import { CudaEvent } from './cuda-event.js';
import { fragmentRecords } from './fragment-records.js';
import { HostEvent } from './host-event.js';
import { loadNative, type NativeAgent, type NativeModule, type NoticeText, nixlPackageTree } from './native.js';
import { typedError } from './native-error.js';
import { type NoteStats, readNoteStats } from './note-stats.js';
import { NoteWatch } from './note-watch.js';
import { type NativeNotice, readNotices } from './notice-records.js';
import { choosePath } from './path-choice.js';
import { PeerWatches } from './peer-watches.js';
import { PreparedFragments } from './prepared-fragments.js';
import type {
  CloseReport,
  CopyExplanation,
  CopyMeans,
  DataPath,
  EngineMemory,
  FragmentTable,
  PathAlternative,
  PathExplanation,
  PeerHandle,
  Pool,
  ReadyEvent,
  SliceSubmission,
  SubmissionGroup,
  SubmissionNotice,
  TransferAgent,
} from './transfer-agent.js';

/** Which agent to open, and how. */
export interface AgentOptions {
  readonly kind: 'host' | 'nixl';
  /** What the agent is called in messages; a random suffix makes the name unique per incarnation. */
  readonly name: string;
  /** Host agent: models one network link of this rate that everything it sends shares, in gigabits a second. Default: none. */
  readonly linkGbps?: number;
  readonly nixl?: {
    /** Path of libnixl_capi.so; default: search. */
    readonly libraryPath?: string;
  };
  /**
   * `auto` (default) = the cheapest that reaches the peer. The others are for benches and diagnosis: `p2p` and `rdma` are the one path of
   * device memory, `bounce` is for every slice with a ticket and refuses peers that it cannot go to.
   */
  readonly path?: 'auto' | 'p2p' | 'rdma' | 'bounce';
  /** The GPU of this agent, opened with it; default: opened by the first device pool. NIXL finds CUDA more surely when it is given. */
  readonly device?: number;
  /** Blocks of one p2p copy, each of which takes one multiprocessor while it runs: 1 to 1024. Default 16. */
  readonly copyBlocks?: number;
  /**
   * Default: no bounce path. The arena is memory of `device` where that is given to a `nixl` agent, and pages there are bounced; else it is
   * host memory, and pages in host memory are.
   */
  readonly bounce?: BounceOptions;
}

/** Of host memory. */
const PATHS = {
  host: { path: 'host', reason: 'both processes run on this machine; the sender copies into shared memory' },
  nixl: { path: 'rdma', reason: 'NIXL over UCX, one descriptor per contiguous run' },
} as const satisfies Record<AgentOptions['kind'], PathExplanation>;

/** In the order of `DataPath` of native/core/path_cost.h. */
const DATA_PATHS: readonly DataPath[] = ['host', 'rdma', 'p2p', 'bounce'];

/** In the order of `CopyMeans` of native/core/copy_explanation.h. */
const COPY_MEANS: readonly CopyMeans[] = ['thread', 'descriptors', 'engines', 'bulk', 'registers'];

const HEAD = 5;
/** Notices that are handed on between two looks at the clock. */
const NOTICES_PER_LOOK = 16;

/**
 * Opens a native agent.
 * @throws ArgumentError for wrong options
 * @throws CapabilityError when the addon or the library behind the agent is missing
 */
export async function createAgent(options: AgentOptions): Promise<TransferAgent> {
  return NativeTransferAgent.open(options);
}

/**
 * Role: TransferAgent over the addon; checks states and names, turns native errors into typed ones.
 * Ordering: completions come in batches, in the order in which native code settled the submissions.
 */
class NativeTransferAgent implements TransferAgent {
  readonly name: string;
  readonly kind: 'host' | 'nixl';
  readonly bounces: boolean;
  readonly carriesNotes = true;
  readonly #native: NativeAgent;
  readonly #bounce: ReturnType<typeof resolveBounce> | null;
  readonly #peerNames = new Map<PeerHandle, string>();
  readonly #peerOfSubmission = new Map<number, string>();
  readonly #droppedEvents: FinalizationRegistry<number>;
  readonly #module: NativeModule;
  readonly #watches: PeerWatches;
  readonly #advice: string[] = [];
  #onAdvice: ((message: string) => void) | null = null;
  readonly #watchfulness = new NoteWatch();
  #onNote: ((peerId: string, note: Uint8Array) => void) | null = null;
  #onNoteSoon: ((peerId: string, note: Uint8Array) => void) | null = null;
  readonly #prepared = new PreparedFragments();
  #listener: ((batch: readonly SubmissionNotice[]) => void) | null = null;
  /** Reported, and not handed on yet. */
  readonly #notices: NativeNotice[] = [];
  readonly #turns = new TurnBudget(new SystemClock());
  #handsOn = false;
  #hasDeviceMemory = false;
  #closing: Promise<CloseReport> | null = null;
  // Reused, so that a submission allocates nothing that grows with its slots.
  #head = new Float64Array(HEAD + 2 * 8);
  #pairs = new Int32Array(0);

  static async open(options: AgentOptions): Promise<NativeTransferAgent> {
    const agent = new NativeTransferAgent(options);
    try {
      await agent.#native.open();
    } catch (error) {
      // A failed agent still has its thread.
      await agent.close(0);
      throw typedError(error);
    }
    return agent;
  }

  private constructor({ kind, name, linkGbps, nixl = {}, path = 'auto', device, copyBlocks, bounce }: AgentOptions) {
    if (name.length === 0) throw new ArgumentError('an agent needs a name');
    // NaN is how native code is told that no link is modelled.
    if (Number.isNaN(linkGbps)) throw new ArgumentError('linkGbps must be a number of gigabits a second');
    if (copyBlocks !== undefined && !(Number.isSafeInteger(copyBlocks) && copyBlocks >= 1 && copyBlocks <= 1024))
      throw new ArgumentError(`copyBlocks must be a whole number from 1 to 1024, not ${copyBlocks}`);
    this.kind = kind;
    this.name = `${name}-${randomBytes(8).toString('hex')}`;
    this.#bounce =
      bounce === undefined ? null : resolveBounce({ ...bounce, ...(path === 'bounce' ? { isForced: true } : {}) });
    this.bounces = this.#bounce !== null;
    const native = loadNative();
    this.#module = native;
    this.#native = attempt(
      () =>
        new native.NativeAgent(
          kind,
          this.name,
          linkGbps ?? NaN,
          nixl.libraryPath ?? '',
          nixlPackageTree(),
          path,
          deviceNumber(device),
          copyBlocks ?? 0,
          bounceRecord(this.#bounce),
          (records, messages) => this.#dispatch(records, messages),
        ),
    );
    this.#watches = new PeerWatches(this.#native);
    this.#droppedEvents = new FinalizationRegistry((handle) => this.#native.releaseEvent(handle));
  }

  async allocatePool({ sizeBytes, device }: { readonly sizeBytes: number; readonly device?: number }): Promise<Pool> {
    const base = await this.#ask((native) => native.allocateRegion(sizeBytes, deviceNumber(device)));
    this.#hasDeviceMemory ||= device !== undefined;
    return device === undefined ? { base, sizeBytes } : { base, sizeBytes, device };
  }

  async registerPool({ address, sizeBytes, device }: EngineMemory): Promise<Pool> {
    await this.#ask((native) => native.registerRegion(address, sizeBytes, device));
    this.#hasDeviceMemory = true;
    return { base: address, sizeBytes, device };
  }

  writeBytes(address: number, bytes: Uint8Array): void {
    attempt(() => this.#native.write(address, bytes));
  }

  readBytes(address: number, length: number): Uint8Array {
    return attempt(() => this.#native.read(address, length));
  }

  readInto(address: number, bytes: Uint8Array): void {
    attempt(() => this.#native.readInto(address, bytes));
  }

  async writeMemory(address: number, bytes: Uint8Array): Promise<void> {
    return attemptAsync(() => this.#module.writeMemory(address, bytes));
  }

  async readMemory(address: number, length: number): Promise<Uint8Array> {
    return attemptAsync(() => this.#module.readMemory(address, length));
  }

  async metadata(): Promise<Uint8Array> {
    return this.#ask((native) => native.metadata());
  }

  async addPeer(metadata: Uint8Array, peerId: string): Promise<PeerHandle> {
    const peer = (await this.#ask((native) => native.addPeer(metadata, peerId), peerId)) as PeerHandle;
    this.#peerNames.set(peer, peerId);
    return peer;
  }

  async removePeer(peer: PeerHandle): Promise<void> {
    const removed = this.#ask((native) => native.removePeer(peer));
    this.#peerNames.delete(peer);
    this.#prepared.remove(peer);
    return removed;
  }

  prepareFragments(
    peer: PeerHandle,
    local: PageTable,
    remote: PageTable,
    fragments: readonly Fragment[],
  ): FragmentTable {
    const records = fragmentRecords(local, remote, fragments);
    const table = attempt(() => this.#native.prepareFragments(peer, records)) as FragmentTable;
    this.#prepared.add(peer, fragments, table);
    return table;
  }

  prepareInbound(peer: PeerHandle, remote: PageTable, local: PageTable, fragments: readonly Fragment[]): FragmentTable {
    const records = fragmentRecords(remote, local, fragments);
    return attempt(() => this.#native.prepareInbound(peer, records)) as FragmentTable;
  }

  async expectInbound(peer: PeerHandle, ticket: bigint, groups: readonly InboundGroup[]): Promise<void> {
    const [records, slots] = inboundRecords(groups);
    return this.#ask((native) => native.expectInbound(peer, ticket, records, slots));
  }

  async endInbound(peer: PeerHandle, ticket: bigint): Promise<void> {
    return this.#ask((native) => native.endInbound(peer, ticket));
  }

  createEvent(): ReadyEvent {
    const event = attempt(() => new HostEvent(this.#native));
    this.#droppedEvents.register(event, event.handle);
    return event;
  }

  submit({ id, peer, flow, groups, after, ticket, note }: SliceSubmission): void {
    const head = this.#headFor(groups.length);
    head[0] = id;
    head[1] = peer;
    head[2] = flow;
    head[3] = after === null ? 0 : this.#eventHandle(after);
    head[4] = groups.length;
    let length = 0;
    for (let i = 0; i < groups.length; i++) {
      const group = groups[i] as SubmissionGroup;
      head[HEAD + 2 * i] = group.fragments;
      head[HEAD + 2 * i + 1] = group.slotPairs.length;
      length += group.slotPairs.length;
    }
    const pairs = groups.length === 1 ? (groups[0] as SubmissionGroup).slotPairs : this.#joinedPairs(groups, length);
    try {
      if (ticket === undefined && note === undefined) this.#native.submit(head, pairs);
      else
        this.#native.submit(
          head,
          pairs,
          ticket,
          ticket === undefined ? undefined : Float64Array.from(groups, ({ key }) => key ?? 0),
          note?.bytes,
          note === undefined ? undefined : Float64Array.from(note.also),
        );
    } catch (error) {
      throw typedError(error);
    }
    this.#peerOfSubmission.set(id, this.#peerNames.get(peer) ?? '');
  }

  cancel(submission: number): void {
    attempt(() => this.#native.cancel(submission));
  }

  onCompletions(listener: (batch: readonly SubmissionNotice[]) => void): void {
    this.#listener = listener;
  }

  async watchPeer(metadata: Uint8Array, peerId: string): Promise<boolean> {
    return this.#watches.add(metadata, peerId);
  }

  unwatchPeer(peerId: string): void {
    this.#watches.remove(peerId);
  }

  onPeerFenced(listener: (peerId: string) => void): void {
    this.#watches.listener = listener;
  }

  flushInbound(): Promise<void> | null {
    // Host memory is coherent, and without NIXL only peers of this machine write, over the GPU's own link.
    if (this.kind !== 'nixl' || !this.#hasDeviceMemory) return null;
    return this.#ask((native) => native.flushInbound());
  }

  onAdvice(listener: (message: string) => void): void {
    this.#onAdvice = listener;
    for (const message of this.#advice) listener(message);
  }

  onNote(listener: (peerId: string, note: Uint8Array) => void): void {
    this.#onNote = listener;
  }

  onNoteSoon(listener: (peerId: string, note: Uint8Array) => void): void {
    this.#onNoteSoon = listener;
  }

  noteStats(): NoteStats {
    return readNoteStats(this.#native.noteStats());
  }

  bounceStats(): BounceStats | null {
    const numbers = this.#native.bounceStats();
    return numbers === null ? null : readBounceStats(numbers);
  }

  explain(peer: PeerHandle, plan: TransferPlan): PathExplanation {
    if (!this.#peerNames.has(peer)) throw new ArgumentError(`unknown peer ${peer}`);
    const records = plan.groups.flatMap(({ fragments, slotPairs }, index) => {
      const table = this.#prepared.find(peer, fragments);
      if (table === null) throw new ArgumentError(`group ${index}: its fragments were not prepared for this peer`);
      return [table, slotPairs.length];
    });
    const length = plan.groups.reduce((slots, { slotPairs }) => slots + slotPairs.length, 0);
    const pairs = this.#joinedPairs(plan.groups, length);
    const found = attempt(() => this.#native.explain(peer, Float64Array.from(records), pairs));
    const all = DATA_PATHS.map((path, index): PathAlternative => {
      return {
        path,
        isAvailable: found.costs[2 * index] === 1,
        reason: found.reasons[index] ?? '',
        estimatedUs: found.costs[2 * index + 1] ?? 0,
      };
    });
    const taken = { isDevice: found.isDevice, path: DATA_PATHS[found.path] as DataPath };
    const plain = PATHS[this.kind];
    const host = found.hostSpeed === '' ? plain : { ...plain, reason: `${plain.reason}; ${found.hostSpeed}` };
    const chosen = choosePath(all, taken, host, this.#bounce, plan);
    const copy = found.copy === undefined ? {} : { copy: copyOf(found.copy) };
    return { ...chosen, ...copy, advice: [...this.#advice] };
  }

  async close(deadlineMs: number): Promise<CloseReport> {
    checkDeadline(deadlineMs);
    this.#closing ??= this.#ask((native) => native.close(deadlineMs)).then((report) => {
      // Nothing is reported after the report.
      this.#tell(this.#notices.splice(0));
      return report;
    });
    return this.#closing;
  }

  #dispatch(records: Float64Array, messages: readonly NoticeText[] | undefined): void {
    const notices = readNotices(records, messages, (submission) => this.#peerOfSubmission.get(submission));
    for (const notice of notices) {
      if (notice.kind === 'completion') this.#peerOfSubmission.delete(notice.submission);
      this.#notices.push(notice);
    }
    if (!this.#handsOn) void this.#handOn();
  }

  /** At once, but in portions: native code reports all that ended while this thread was busy in one call. */
  async #handOn(): Promise<void> {
    this.#handsOn = true;
    while (this.#notices.length > 0) {
      this.#tell(this.#notices.splice(0, NOTICES_PER_LOOK));
      if (this.#turns.isSpent()) await this.#turns.nextTurn();
    }
    this.#handsOn = false;
  }

  #tell(notices: readonly NativeNotice[]): void {
    const ofSubmissions: SubmissionNotice[] = [];
    for (const notice of notices) {
      if (isOfSubmission(notice)) ofSubmissions.push(notice);
      else callListener(() => this.#hear(notice));
    }
    if (ofSubmissions.length > 0) callListener(() => this.#listener?.(ofSubmissions));
  }

  #hear(notice: Exclude<NativeNotice, SubmissionNotice>): void {
    if (notice.kind === 'ended') {
      this.#watches.ended(notice.watch);
    } else if (notice.kind === 'note soon') {
      this.#watchfulness.begin();
      const peerId = this.#watches.nameOf(notice.watch);
      if (peerId !== undefined) this.#onNoteSoon?.(peerId, notice.bytes);
    } else if (notice.kind === 'inbound note') {
      this.#watchfulness.end();
      const peerId = this.#watches.nameOf(notice.watch);
      if (peerId !== undefined) this.#onNote?.(peerId, notice.bytes);
    } else if (!this.#advice.includes(notice.message)) {
      this.#advice.push(notice.message);
      this.#onAdvice?.(notice.message);
    }
  }

  async #ask<T>(call: (native: NativeAgent) => Promise<T>, peer?: string): Promise<T> {
    return attemptAsync(() => call(this.#native), peer);
  }

  #eventHandle(after: ReadyEvent): number {
    if (after instanceof CudaEvent) return -after.handle;
    if (after instanceof HostEvent && after.belongsTo(this.#native)) return after.handle;
    throw new ArgumentError('after: the event was made by another agent');
  }

  #headFor(groupCount: number): Float64Array {
    const length = HEAD + 2 * groupCount;
    if (this.#head.length < length) this.#head = new Float64Array(2 * length);
    return this.#head;
  }

  #joinedPairs(groups: readonly Pick<SubmissionGroup, 'slotPairs'>[], length: number): Int32Array {
    if (this.#pairs.length < length) this.#pairs = new Int32Array(2 * length);
    let at = 0;
    for (const { slotPairs } of groups) {
      this.#pairs.set(slotPairs, at);
      at += slotPairs.length;
    }
    return this.#pairs;
  }
}

/** What a listener throws is its owner's bug: it surfaces as an uncaught exception, and the others are still delivered. */
function callListener(call: () => void): void {
  try {
    call();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

function isOfSubmission(notice: NativeNotice): notice is SubmissionNotice {
  return 'submission' in notice;
}

function copyOf({ means, reason, remedy }: NonNullable<ReturnType<NativeAgent['explain']>['copy']>): CopyExplanation {
  return { means: COPY_MEANS[means] as CopyMeans, reason, remedy: remedy === '' ? null : remedy };
}

/** As native code takes it: -1 is no GPU. */
function deviceNumber(device: number | undefined): number {
  if (device === undefined) return -1;
  if (!Number.isSafeInteger(device) || device < 0)
    throw new ArgumentError(`device must be a GPU's number, got ${device}`);
  return device;
}

function attempt<T>(call: () => T): T {
  try {
    return call();
  } catch (error) {
    throw typedError(error);
  }
}

async function attemptAsync<T>(call: () => Promise<T>, peer?: string): Promise<T> {
  try {
    return await call();
  } catch (error) {
    throw typedError(error, peer === undefined ? {} : { peer, drained: true });
  }
}
