import { BareCopy, type BareCopyTimes } from '../../../agent/bare-copy.js';
import type { FragmentTable, PeerHandle } from '../../../agent/transfer-agent.js';
import { SystemClock } from '../../../clock.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { pageShape } from './page-shape.js';
import type { ReceiverProcess } from './receiver-process.js';

/** What bounced slices are measured against: contiguous copies of the same bytes. */
export class BounceRoof {
  readonly #receiver: ReceiverProcess;
  readonly #sizeBytes: number;
  readonly #bench: BenchAgent;
  readonly #completions: CompletionWaiter;
  readonly #peer: PeerHandle;
  readonly #table: FragmentTable;
  readonly #bareCopy: BareCopy | null;
  readonly #clock = new SystemClock();
  #nextSubmission = 1;

  private constructor(
    receiver: ReceiverProcess,
    sizeBytes: number,
    bench: BenchAgent,
    completions: CompletionWaiter,
    peer: PeerHandle,
    table: FragmentTable,
    bareCopy: BareCopy | null,
  ) {
    this.#receiver = receiver;
    this.#sizeBytes = sizeBytes;
    this.#bench = bench;
    this.#completions = completions;
    this.#peer = peer;
    this.#table = table;
    this.#bareCopy = bareCopy;
  }

  /** @param gpus the writer's and the receiver's; null: host memory, for which there is no bare copy */
  static async open(
    receiver: ReceiverProcess,
    gpus: readonly [number, number] | null,
    sizeBytes: number,
  ): Promise<BounceRoof> {
    const path = gpus === null ? {} : { path: 'p2p' as const };
    const from = gpus === null ? {} : { device: gpus[0] };
    const to = gpus === null ? {} : { device: gpus[1] };
    const blocks = gpus === null ? {} : { copyBlocks: 32 };
    const bareCopy = gpus === null ? null : await BareCopy.open(...gpus, sizeBytes);
    const bench = await openAgent('host', null, 'roof-sender', { ...from, ...path, ...blocks });
    const completions = new CompletionWaiter();
    bench.agent.onCompletions((batch) => completions.accept(batch));
    const { base } = await bench.agent.allocatePool({ sizeBytes, ...from });
    const opened = await receiver.ask(
      { kind: 'open', lane: 'roof', agent: 'host', ...to, sizeBytes, ...path },
      'opened',
    );
    const peer = await receiver.orLost(bench.agent.addPeer(opened.metadata, 'roof-receiver'));
    const { source, destination, fragments } = pageShape(sizeBytes, sizeBytes);
    const table = bench.agent.prepareFragments(
      peer,
      oneSlot(source(base)),
      oneSlot(destination(opened.base)),
      fragments,
    );
    return new BounceRoof(receiver, sizeBytes, bench, completions, peer, table, bareCopy);
  }

  /** One command of the driver; null: host memory. */
  async timeBareCopy(): Promise<BareCopyTimes | null> {
    return this.#bareCopy && this.#receiver.orLost(this.#bareCopy.time(this.#sizeBytes));
  }

  /** By an agent over p2p or shared memory. @returns milliseconds from its submission to its last byte */
  async timeAgentsCopy(): Promise<number> {
    const id = this.#nextSubmission++;
    const done = this.#completions.expect(id);
    const startMs = this.#clock.now();
    const groups = [{ fragments: this.#table, slotPairs: Int32Array.of(0, 0) }];
    this.#bench.agent.submit({ id, peer: this.#peer, flow: 1, groups, after: null });
    const completion = await this.#receiver.orLost(done);
    if (completion.error !== null) throw completion.error;
    return completion.finishedAtMs - startMs;
  }

  async close(deadlineMs: number): Promise<void> {
    await this.#bareCopy?.close();
    await this.#bench.agent.close(deadlineMs);
  }
}

/** The shape has room for pages of which one is moved; here the pool is that one. */
function oneSlot(table: ReturnType<ReturnType<typeof pageShape>['source']>): typeof table {
  const [pool] = table.pools;
  const [group] = table.layerGroups;
  if (pool === undefined || group === undefined) return table;
  return { ...table, pools: [{ ...pool, slotCount: 1 }], layerGroups: [{ ...group, slotCount: 1 }] };
}
