import { BareCopy, type BareCopyTimes } from '../../../agent/bare-copy.js';
import { CudaDevice } from '../../../agent/cuda-device.js';
import type { CudaEvent } from '../../../agent/cuda-event.js';
import { NixlLoop } from '../../../agent/nixl-loop.js';
import type { Completion, FragmentTable, PeerHandle, ReadyEvent } from '../../../agent/transfer-agent.js';
import { SystemClock } from '../../../clock.js';
import { StateError, TransportError } from '../../../errors.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { mixSeed } from '../seeded-random.js';
import { POOL_OVER_MOVED, pageTokens, scatteredSlots, sortedPairs } from './page-set.js';
import { type PageShape, pageShape } from './page-shape.js';
import type { ReceiverProcess } from './receiver-process.js';

/** One agent on each side, and the path it is held to. */
export interface DeviceLaneSpec {
  readonly name: string;
  readonly agent: 'host' | 'nixl';
  readonly path: 'p2p' | 'rdma';
  readonly copyBlocks?: number;
}

/** Samples of one lane and page size. */
export interface LaneSamples {
  readonly elapsedMs: number[];
  /** Of one contiguous copy of the same bytes by the same agent, taken in turns with the pages. */
  readonly contiguousMs: number[];
  /** Of one copy command of the driver for the same bytes between the same GPUs, in the same turns: by the host's clock, as the others are. */
  readonly bareCopyMs: number[];
  /** The same copies by the GPU's clock. */
  readonly bareCopyDeviceMs: number[];
  /** Of the same pages by a bare loop over NIXL, in the same turns; empty for other agents, and for pages that are no large descriptors. */
  readonly bareLoopMs: number[];
  /** Of `elapsedMs`, turn by turn: where it went. */
  readonly turns: TurnMarks[];
  readonly wrongBytes: number;
}

/** What the time of one turn consists of, from the first submission on: `beforePostUs + firstSliceUs + (slices - 1) * betweenEndsUs`. */
export interface TurnMarks {
  readonly slices: number;
  /** Until the agent's thread took up the first slice. */
  readonly beforePostUs: number;
  /** From there until it saw the first slice's end. */
  readonly firstSliceUs: number;
  /** From one slice's end to the next one's, on average; NaN becomes null in JSON where there is one slice. */
  readonly betweenEndsUs: number;
  /** What the agent's thread took to prepare and queue them, all together. */
  readonly postingUs: number;
}

/** Slices of 2,048 pages: what one costs before its bytes move, and how long after its event they do. */
export interface SliceCosts {
  readonly submitUs: readonly number[];
  readonly postingUs: readonly number[];
  /** From the event to the end of a slice of one page of 4 KiB, queued behind it: no less than to its first byte. */
  readonly eventToPageUs: readonly number[];
}

/** `pages`: scattered, copied by kernels. `long-runs`: each slice one run of 64 MiB, which the copy engines copy. */
export type AbortedSlices = 'pages' | 'long-runs';

/** What an abort costs: from the cancel to pages that nothing writes any more. */
export interface AbortCosts {
  readonly slices: AbortedSlices;
  /** Of slices under way. */
  readonly freeMs: readonly number[];
  /** Of slices that the GPU has queued behind an event, and gives back before it. */
  readonly behindEventMs: readonly number[];
  /** How many of those were over while their event was still to come. */
  readonly beforeEvent: number;
  readonly movedShare: number;
  readonly undrained: number;
  /** In pages that the receiver used as soon as they were free. */
  readonly wrongBytes: number;
}

interface Lane extends BenchAgent {
  readonly spec: DeviceLaneSpec;
  readonly base: number;
  readonly peer: PeerHandle;
  readonly peerBase: number;
  readonly completions: CompletionWaiter;
  readonly bareLoop: NixlLoop | null;
}

/** From this size on a page is a large descriptor, and there are few of them. */
const LARGE_PAGE_BYTES = 2 ** 20;
const SLICE_PAGES = 2048;
const SLICE_PAGE_BYTES = 4096;
const SLICE_SAMPLES = 60;
const ABORT_PAGE_BYTES = 32768;
const ABORT_BYTES = 512 * 2 ** 20;
/** About 30 ms of an H200. */
const ABORT_BUSY_ROUNDS = 480;
const ABORT_CANARY_MS = 15;
/** Keeps the GPU busy long enough for a submission to be queued behind it. */
const BUSY_BYTES = 256 * 2 ** 20;
const BUSY_ROUNDS = 40;

/** Role: the sending process of device rows. Each lane has a pool on the writer's GPU and one on the receiver's. */
export class DeviceTransferRun {
  readonly #receiver: ReceiverProcess;
  readonly #gpus: readonly [number, number];
  readonly #totalBytes: number;
  readonly #slicePages: number;
  readonly #lanes: Lane[] = [];
  readonly #clock = new SystemClock();
  #bareCopy: BareCopy | null = null;
  #nextSubmission = 1;

  constructor(
    receiver: ReceiverProcess,
    gpus: readonly [number, number],
    totalBytes: number,
    slicePages = SLICE_PAGES,
  ) {
    this.#slicePages = slicePages;
    this.#receiver = receiver;
    this.#gpus = gpus;
    this.#totalBytes = totalBytes;
  }

  async open(specs: readonly DeviceLaneSpec[]): Promise<void> {
    const [from, to] = this.#gpus;
    const sizeBytes = this.#totalBytes * POOL_OVER_MOVED;
    this.#bareCopy = await BareCopy.open(from, to, this.#totalBytes);
    for (const spec of specs) {
      const { name, agent, path, copyBlocks } = spec;
      const blocks = copyBlocks === undefined ? {} : { copyBlocks };
      const bench = await openAgent(agent, null, 'transfer-sender', { path, device: from, ...blocks });
      const completions = new CompletionWaiter();
      bench.agent.onCompletions((batch) => completions.accept(batch));
      const pool = await bench.agent.allocatePool({ sizeBytes, device: from });
      const opened = await this.#receiver.ask(
        { kind: 'open', lane: name, agent, path, device: to, sizeBytes },
        'opened',
      );
      const peer = await this.#receiver.orLost(bench.agent.addPeer(opened.metadata, 'transfer-receiver'));
      const bareLoop = agent === 'nixl' ? await this.#receiver.orLost(NixlLoop.open(pool, opened.metadata)) : null;
      this.#lanes.push({ ...bench, spec, base: pool.base, peer, peerBase: opened.base, completions, bareLoop });
    }
  }

  /** Lanes take turns in each round. */
  async measure(
    shape: PageShape,
    rounds: number,
    seed: number,
    onRound: () => void,
  ): Promise<ReadonlyMap<string, LaneSamples>> {
    const { pairCount, tokensPerPage } = shape;
    const bytes = pairCount * shape.bytesPerPair;
    const source = scatteredSlots(pairCount, mixSeed(seed, shape.bytesPerPair, 0));
    const destination = scatteredSlots(pairCount, mixSeed(seed, shape.bytesPerPair, 1));
    const pairs = sortedPairs(source, destination);
    const samples = new Map<string, LaneSamples>();
    const tables = new Map<string, { readonly pages: FragmentTable; readonly whole: FragmentTable }>();
    for (const lane of this.#lanes) {
      const tokens = pairCount * tokensPerPage;
      await lane.content.fill({
        table: shape.source(lane.base),
        group: 0,
        run: { begin: 0, slots: source },
        tokenBegin: 0,
        tokenEnd: tokens,
        tokenSeeds: lane.content.chainTokenSeeds(pageTokens(tokens, shape.bytesPerPair)),
        firstHead: 0,
      });
      tables.set(lane.spec.name, {
        pages: this.#tableOf(lane, shape),
        whole: this.#tableOf(lane, pageShape(bytes, bytes)),
      });
      samples.set(lane.spec.name, {
        elapsedMs: [],
        contiguousMs: [],
        bareCopyMs: [],
        bareCopyDeviceMs: [],
        bareLoopMs: [],
        turns: [],
        wrongBytes: 0,
      });
    }
    const whole = Int32Array.of(0, 0);
    for (let round = -1; round < rounds; round++) {
      for (const lane of this.#lanes) {
        const { pages, whole: table } = tables.get(lane.spec.name) as { pages: FragmentTable; whole: FragmentTable };
        const bareCopy = await this.#timeBareCopy(bytes);
        const contiguous = await this.#transfer(lane, table, whole, bytes);
        const bareLoopMs = await this.#timeBareLoop(lane, shape, pairs);
        // Last, so that the pages are what the receiver checks.
        const scattered = await this.#transfer(lane, pages, pairs, bytes);
        if (round < 0) continue;
        const taken = samples.get(lane.spec.name) as LaneSamples;
        taken.bareCopyMs.push(bareCopy.hostMs);
        taken.bareCopyDeviceMs.push(bareCopy.deviceMs);
        taken.contiguousMs.push(contiguous.elapsedMs);
        if (bareLoopMs !== null) taken.bareLoopMs.push(bareLoopMs);
        taken.elapsedMs.push(scattered.elapsedMs);
        taken.turns.push(scattered.marks);
      }
      onRound();
    }
    for (const lane of this.#lanes) {
      const lane0 = samples.get(lane.spec.name) as LaneSamples;
      const wrongBytes = await this.#verify(lane, shape, destination, { seed: shape.bytesPerPair });
      samples.set(lane.spec.name, { ...lane0, wrongBytes });
    }
    return samples;
  }

  /**
   * Cancels slices that are under way, `count` times, and has the receiver use their pages as soon as all of them have settled and
   * drained. Destroys what the pools hold.
   */
  async measureAborts(name: string, slices: AbortedSlices, count: number): Promise<AbortCosts> {
    const lane = this.#lanes.find(({ spec }) => spec.name === name) as Lane;
    const shape = pageShape(ABORT_PAGE_BYTES, Math.min(ABORT_BYTES, this.#totalBytes));
    const table = this.#tableOf(lane, shape);
    // Neighbours on both sides join: a slice of them is one run.
    const inOrder = Int32Array.from({ length: shape.pairCount }, (_, slot) => slot);
    const slots = slices === 'pages' ? scatteredSlots(shape.pairCount, 8n) : inOrder;
    const pairs = sortedPairs(slices === 'pages' ? scatteredSlots(shape.pairCount, 7n) : inOrder, slots);
    const gpu = await CudaDevice.open(this.#gpus[0]);
    const stream = await gpu.createStream('high');
    const freeMs: number[] = [];
    const behindEventMs: number[] = [];
    let movedBytes = 0;
    let wrongBytes = 0;
    let undrained = 0;
    let beforeEvent = 0;
    for (let i = 0; i < count; i++) {
      const isBehindEvent = i % 2 === 1;
      let after: CudaEvent | null = null;
      if (isBehindEvent) {
        const event = gpu.createEvent();
        stream.clear(lane.base, Math.min(BUSY_BYTES, this.#totalBytes), ABORT_BUSY_ROUNDS);
        event.record(stream);
        after = event;
      }
      const submitted: { readonly id: number; readonly done: Promise<Completion> }[] = [];
      for (let at = 0; at < pairs.length; at += 2 * SLICE_PAGES) {
        submitted.push(this.#submit(lane, table, pairs.subarray(at, at + 2 * SLICE_PAGES), after));
      }
      // Anywhere between the first launch and the last byte.
      const cancelAtMs = this.#clock.now() + (i % 8) * 0.2;
      while (this.#clock.now() < cancelAtMs);
      const cancelledAtMs = this.#clock.now();
      for (const { id } of submitted) lane.agent.cancel(id);
      const ends = await this.#receiver.orLost(Promise.all(submitted.map(({ done }) => done)));
      (isBehindEvent ? behindEventMs : freeMs).push(this.#clock.now() - cancelledAtMs);
      if (after?.query() === 'pending') beforeEvent += 1;
      movedBytes += ends.reduce((sum, end) => sum + end.bytes, 0);
      undrained += ends.filter((end) => !end.drained).length;
      wrongBytes += await this.#verify(lane, shape, slots, { seed: i + 1, canaryMs: ABORT_CANARY_MS });
    }
    stream.close();
    return {
      slices,
      freeMs,
      behindEventMs,
      beforeEvent,
      movedShare: movedBytes / (count * shape.pairCount * ABORT_PAGE_BYTES),
      undrained,
      wrongBytes,
    };
  }

  /** Destroys what the pools hold. */
  async measureSlices(name: string): Promise<SliceCosts> {
    const lane = this.#lanes.find(({ spec }) => spec.name === name) as Lane;
    const table = this.#tableOf(lane, pageShape(SLICE_PAGE_BYTES, this.#totalBytes));
    const slots = scatteredSlots(SLICE_PAGES, 5n);
    const pairs = sortedPairs(slots, scatteredSlots(SLICE_PAGES, 6n));
    const submitUs: number[] = [];
    const postingUs: number[] = [];
    for (let i = -5; i < SLICE_SAMPLES; i++) {
      const { done, submitMs } = this.#submit(lane, table, pairs, null);
      const completion = await this.#receiver.orLost(done);
      if (i < 0) continue;
      submitUs.push(submitMs * 1000);
      postingUs.push((completion.postingMs ?? Number.NaN) * 1000);
    }
    const gpu = await CudaDevice.open(this.#gpus[0]);
    const stream = await gpu.createStream('high');
    const one = Int32Array.of(0, 0);
    const eventToPageUs: number[] = [];
    for (let i = -5; i < SLICE_SAMPLES; i++) {
      const event = gpu.createEvent();
      stream.clear(lane.base, Math.min(BUSY_BYTES, this.#totalBytes), BUSY_ROUNDS);
      event.record(stream);
      const { done } = this.#submit(lane, table, one, event);
      // This thread only watches: it notes when the stream got there.
      while (event.query() === 'pending');
      const reachedAtMs = this.#clock.now();
      const completion = await this.#receiver.orLost(done);
      if (i >= 0) eventToPageUs.push((completion.finishedAtMs - reachedAtMs) * 1000);
    }
    stream.close();
    return { submitUs, postingUs, eventToPageUs };
  }

  async close(): Promise<void> {
    await this.#bareCopy?.close();
    for (const { bareLoop } of this.#lanes) await bareLoop?.close();
    await Promise.all(this.#lanes.map(({ agent }) => agent.close(2000)));
  }

  #tableOf(lane: Lane, { source, destination, fragments }: PageShape): FragmentTable {
    return lane.agent.prepareFragments(lane.peer, source(lane.base), destination(lane.peerBase), fragments);
  }

  #submit(
    lane: Lane,
    fragments: FragmentTable,
    slotPairs: Int32Array,
    after: ReadyEvent | null,
  ): { readonly id: number; readonly done: Promise<Completion>; readonly submitMs: number; readonly startMs: number } {
    const id = this.#nextSubmission++;
    const done = lane.completions.expect(id);
    const startMs = this.#clock.now();
    lane.agent.submit({ id, peer: lane.peer, flow: 1, groups: [{ fragments, slotPairs }], after });
    return { id, done, submitMs: this.#clock.now() - startMs, startMs };
  }

  async #timeBareCopy(bytes: number): Promise<BareCopyTimes> {
    if (this.#bareCopy === null) throw new StateError('the run was not opened');
    return this.#receiver.orLost(this.#bareCopy.time(bytes));
  }

  async #timeBareLoop(
    { bareLoop, base, peerBase }: Lane,
    { kind, bytesPerPair }: PageShape,
    pairs: Int32Array,
  ): Promise<number | null> {
    if (bareLoop === null || kind !== 'pages' || bytesPerPair < LARGE_PAGE_BYTES) return null;
    return this.#receiver.orLost(bareLoop.time(base, peerBase, bytesPerPair, pairs));
  }

  /** From the first submission to the last byte; pages go in slices, as chunks of prefill hand them over. */
  async #transfer(
    lane: Lane,
    fragments: FragmentTable,
    slotPairs: Int32Array,
    bytes: number,
  ): Promise<{ readonly elapsedMs: number; readonly marks: TurnMarks }> {
    const slices: Promise<Completion>[] = [];
    let startMs = Number.NaN;
    for (let at = 0; at < slotPairs.length; at += 2 * this.#slicePages) {
      const slice = slotPairs.subarray(at, at + 2 * this.#slicePages);
      const submitted = this.#submit(lane, fragments, slice, null);
      if (at === 0) startMs = submitted.startMs;
      slices.push(submitted.done);
    }
    const completions = await this.#receiver.orLost(Promise.all(slices));
    const failed = completions.find(({ status }) => status !== 'transferred');
    const moved = completions.reduce((sum, completion) => sum + completion.bytes, 0);
    if (failed !== undefined || moved !== bytes) {
      throw failed?.error ?? new TransportError(`${lane.spec.name}: ${moved} of ${bytes} bytes arrived`);
    }
    const ends = completions.map(({ finishedAtMs }) => finishedAtMs).sort((a, b) => a - b);
    const [firstEndMs, lastEndMs] = [ends[0] as number, ends.at(-1) as number];
    const postedAtMs = Math.min(...completions.map((completion) => completion.postedAtMs ?? Number.NaN));
    const marks: TurnMarks = {
      slices: ends.length,
      beforePostUs: (postedAtMs - startMs) * 1000,
      firstSliceUs: (firstEndMs - postedAtMs) * 1000,
      betweenEndsUs: ((lastEndMs - firstEndMs) * 1000) / (ends.length - 1),
      postingUs: completions.reduce((sum, { postingMs }) => sum + (postingMs ?? 0), 0) * 1000,
    };
    return { elapsedMs: lastEndMs - startMs, marks };
  }

  async #verify(
    lane: Lane,
    { kind, bytesPerPair, slotCount }: PageShape,
    slots: Int32Array,
    how: { readonly seed: number; readonly canaryMs?: number },
  ): Promise<number> {
    const isSplit = kind === 'split';
    const { bytesChecked, wrongBytes } = await this.#receiver.ask(
      { kind: 'verify', lane: lane.spec.name, pageBytes: bytesPerPair, slotCount, slots, isSplit, ...how },
      'verified',
    );
    // A page that was not looked at counts as wrong.
    return wrongBytes + slots.length * bytesPerPair - bytesChecked;
  }
}
