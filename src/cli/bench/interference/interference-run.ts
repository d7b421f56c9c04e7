import { type GemmStep, GemmWorkload } from '../../../agent/gemm-workload.js';
import type { Completion, FragmentTable, PeerHandle, ReadyEvent } from '../../../agent/transfer-agent.js';
import { SystemClock } from '../../../clock.js';
import { ArgumentError, InternalError } from '../../../errors.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { presetNamed } from '../presets/index.js';
import { matrixWidthsOf } from '../presets/matrix-widths.js';
import { bytesPerToken } from '../presets/model-preset.js';
import { mixSeed } from '../seeded-random.js';
import type { DeviceLaneSpec } from '../transfer/device-transfer-run.js';
import { POOL_OVER_MOVED, pageTokens, scatteredSlots, sortedPairs } from '../transfer/page-set.js';
import { type PageShape, pageShape } from '../transfer/page-shape.js';
import type { ReceiverProcess } from '../transfer/receiver-process.js';
import type { InterferenceOptions } from './interference-options.js';

/** `own`: each chunk's pages leave behind its event, as in pipelined prefill. `saturating`: pages move all the time. */
export type TransferLoad = 'own' | 'saturating';

/** One prefill of all chunks. */
export interface PrefillSample {
  readonly elapsedMs: number;
  /** While it ran, and for `own` also after it. */
  readonly bytesMoved: number;
}

interface Lane extends BenchAgent {
  readonly spec: DeviceLaneSpec;
  readonly peer: PeerHandle;
  readonly fragments: FragmentTable;
  readonly completions: CompletionWaiter;
}

const SLICE_PAGES = 2048;
/** Slices under way while a lane saturates its path. */
const SLICES_IN_FLIGHT = 4;

/** Role: prefill on one GPU, alone or beside transfers of its own process to another. */
export class InterferenceRun {
  readonly #options: InterferenceOptions;
  readonly #receiver: ReceiverProcess;
  readonly #shape: PageShape;
  readonly #source: Int32Array;
  readonly #slots: Int32Array;
  readonly #pairs: Int32Array;
  readonly #lanes = new Map<string, Lane>();
  readonly #clock = new SystemClock();
  #gemm: GemmWorkload | null = null;
  #nextSubmission = 1;

  /** @param receiver stays its owner's */
  constructor(options: InterferenceOptions, receiver: ReceiverProcess) {
    this.#options = options;
    this.#receiver = receiver;
    const { model, chunk, pageBytes, seed } = options;
    this.#shape = pageShape(pageBytes, bytesPerToken(presetNamed(model)) * chunk);
    this.#slots = scatteredSlots(this.#shape.pairCount, mixSeed(seed, 1, 0));
    this.#source = scatteredSlots(this.#shape.pairCount, mixSeed(seed, 0, 0));
    this.#pairs = sortedPairs(this.#source, this.#slots);
  }

  get bytesPerChunk(): number {
    return this.#shape.pairCount * this.#shape.bytesPerPair;
  }

  /** @returns the cuBLAS that is used */
  async open(specs: readonly DeviceLaneSpec[]): Promise<GemmWorkload['library']> {
    const { model, gpus, chunk, chunks } = this.#options;
    const preset = presetNamed(model);
    const widths = matrixWidthsOf(preset);
    if (widths === null || preset.cache.kind !== 'attention') throw new ArgumentError(`${model} is no dense model`);
    this.#gemm = await GemmWorkload.open(gpus[0], {
      ...widths,
      layers: preset.layerCount,
      heads: preset.attentionHeads,
      kvHeads: preset.cache.kvHeads,
      headDim: preset.cache.headDim,
      maxChunkTokens: chunk,
      maxContextTokens: chunk * chunks,
    });
    for (const spec of specs) await this.#openLane(spec);
    return this.#gemm.library;
  }

  async prefill(name: string | null, load: TransferLoad): Promise<PrefillSample> {
    const lane = name === null ? null : this.#lane(name);
    const { chunk, chunks } = this.#options;
    const moved: Promise<number>[] = [];
    const flow = { isOver: false };
    const startMs = this.#clock.now();
    const saturated = lane !== null && load === 'saturating' ? this.#saturate(lane, flow) : Promise.resolve(0);
    saturated.catch(() => {});
    let last: GemmStep | null = null;
    for (let index = 0; index < chunks; index++) {
      last = await this.#workload().forward(chunk, index * chunk);
      if (lane === null || load !== 'own') continue;
      const sent = this.#sendChunk(lane, last.event);
      // Awaited at the end; until then a failure has nobody to tell.
      sent.catch(() => {});
      moved.push(sent);
    }
    await last?.done;
    const elapsedMs = this.#clock.now() - startMs;
    flow.isOver = true;
    const bytes = await this.#receiver.orLost(Promise.all([saturated, ...moved]));
    return { elapsedMs, bytesMoved: bytes.reduce((sum, part) => sum + part, 0) };
  }

  /** Bytes of the lane's pages that did not arrive as they are. */
  async wrongBytes(name: string): Promise<number> {
    const { bytesPerPair, slotCount } = this.#shape;
    const slots = this.#slots;
    const { bytesChecked, wrongBytes } = await this.#receiver.ask(
      {
        kind: 'verify',
        lane: this.#lane(name).spec.name,
        pageBytes: bytesPerPair,
        slotCount,
        slots,
        seed: bytesPerPair,
      },
      'verified',
    );
    return wrongBytes + slots.length * bytesPerPair - bytesChecked;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#lanes.values()].map(({ agent }) => agent.close(2000)));
    await this.#gemm?.close();
  }

  async #openLane(spec: DeviceLaneSpec): Promise<void> {
    const { name, agent: kind, path, copyBlocks } = spec;
    const [from, to] = this.#options.gpus;
    const sizeBytes = this.bytesPerChunk * POOL_OVER_MOVED;
    const blocks = copyBlocks === undefined ? {} : { copyBlocks };
    const bench = await openAgent(kind, null, 'interference-sender', { path, device: from, ...blocks });
    const completions = new CompletionWaiter();
    bench.agent.onCompletions((batch) => completions.accept(batch));
    const { base } = await bench.agent.allocatePool({ sizeBytes, device: from });
    const opened = await this.#receiver.ask(
      { kind: 'open', lane: name, agent: kind, path, device: to, sizeBytes },
      'opened',
    );
    const peer = await this.#receiver.orLost(bench.agent.addPeer(opened.metadata, 'interference-receiver'));
    const { source, destination, fragments, bytesPerPair, pairCount } = this.#shape;
    await bench.content.fill({
      table: source(base),
      group: 0,
      run: { begin: 0, slots: this.#source },
      tokenBegin: 0,
      tokenEnd: pairCount,
      tokenSeeds: bench.content.chainTokenSeeds(pageTokens(pairCount, bytesPerPair)),
      firstHead: 0,
    });
    const table = bench.agent.prepareFragments(peer, source(base), destination(opened.base), fragments);
    this.#lanes.set(name, { ...bench, spec, peer, fragments: table, completions });
  }

  #sendChunk(lane: Lane, after: ReadyEvent): Promise<number> {
    const slices: Promise<number>[] = [];
    for (let at = 0; at < this.#pairs.length; at += 2 * SLICE_PAGES) slices.push(this.#send(lane, at, after));
    return Promise.all(slices).then((bytes) => bytes.reduce((sum, part) => sum + part, 0));
  }

  /** Until `flow.isOver`. */
  async #saturate(lane: Lane, flow: { isOver: boolean }): Promise<number> {
    const stream = async (first: number): Promise<number> => {
      let bytes = 0;
      const step = 2 * SLICE_PAGES * SLICES_IN_FLIGHT;
      for (let at = first; !flow.isOver; at = at + step < this.#pairs.length ? at + step : first) {
        bytes += await this.#send(lane, at < this.#pairs.length ? at : 0, null);
      }
      return bytes;
    };
    const streams = Array.from({ length: SLICES_IN_FLIGHT }, (_, index) => stream(2 * SLICE_PAGES * index));
    return (await Promise.all(streams)).reduce((sum, part) => sum + part, 0);
  }

  async #send(lane: Lane, at: number, after: ReadyEvent | null): Promise<number> {
    const id = this.#nextSubmission++;
    const done: Promise<Completion> = lane.completions.expect(id);
    const slotPairs = this.#pairs.subarray(at, at + 2 * SLICE_PAGES);
    lane.agent.submit({ id, peer: lane.peer, flow: 1, groups: [{ fragments: lane.fragments, slotPairs }], after });
    const { status, bytes, error } = await done;
    if (status !== 'transferred') throw error ?? new InternalError(`${lane.spec.name}: a slice was ${status}`);
    return bytes;
  }

  #lane(name: string): Lane {
    const lane = this.#lanes.get(name);
    if (lane === undefined) throw new InternalError(`lane ${name} was not opened`);
    return lane;
  }

  #workload(): GemmWorkload {
    if (this.#gemm === null) throw new InternalError('the run was not opened');
    return this.#gemm;
  }
}
