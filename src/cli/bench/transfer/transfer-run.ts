import { plainCopyNs } from '../../../agent/plain-copy.js';
import type { FragmentTable, PeerHandle } from '../../../agent/transfer-agent.js';
import { SystemClock } from '../../../clock.js';
import { TransportError } from '../../../errors.js';
import type { PageTable } from '../../../mapping/page-table.js';
import { CompletionWaiter } from '../completion-waiter.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { mixSeed } from '../seeded-random.js';
import { POOL_OVER_MOVED, pageTableOf, pageTokens, scatteredSlots, sortedPairs } from './page-set.js';
import type { ReceiverProcess } from './receiver-process.js';

export type AgentKind = 'host' | 'nixl';
export type CopyWay = 'memcpy' | 'contiguous' | AgentKind;

/** Milliseconds of each measurement, and what the receiver found. */
export interface PageMeasurement {
  readonly pageBytes: number;
  readonly pageCount: number;
  readonly elapsedMs: Readonly<Record<CopyWay, number[]>>;
  readonly wrongBytes: Readonly<Record<AgentKind, number | null>>;
}

interface Lane extends BenchAgent {
  readonly kind: AgentKind;
  readonly base: number;
  readonly peer: PeerHandle;
  readonly peerBase: number;
  readonly completions: CompletionWaiter;
}

/** One agent's two pools during the rows of one page size. */
interface PageLane extends Lane {
  readonly fragments: FragmentTable;
  readonly pairs: Int32Array;
  readonly destination: Int32Array;
}

/**
 * Role: the sending process. Each agent has a pool here and one in the receiver; the first agent's process also has a second pool for the
 * copies inside one process.
 */
export class TransferRun {
  readonly #receiver: ReceiverProcess;
  readonly #clock = new SystemClock();
  readonly #lanes: Lane[] = [];
  readonly #poolBytes: number;
  readonly #totalBytes: number;
  #localDestination = 0;
  #nextSubmission = 1;

  constructor(receiver: ReceiverProcess, totalBytes: number) {
    this.#receiver = receiver;
    this.#totalBytes = totalBytes;
    this.#poolBytes = totalBytes * POOL_OVER_MOVED;
  }

  async open(kinds: readonly AgentKind[]): Promise<void> {
    for (const kind of kinds) {
      const bench = await openAgent(kind, null, 'transfer-sender');
      const completions = new CompletionWaiter();
      bench.agent.onCompletions((batch) => completions.accept(batch));
      const { base } = await bench.agent.allocatePool({ sizeBytes: this.#poolBytes });
      if (this.#localDestination === 0) {
        this.#localDestination = (await bench.agent.allocatePool({ sizeBytes: this.#poolBytes })).base;
      }
      const opened = await this.#receiver.ask(
        { kind: 'open', lane: kind, agent: kind, sizeBytes: this.#poolBytes },
        'opened',
      );
      const peer = await this.#receiver.orLost(bench.agent.addPeer(opened.metadata, 'transfer-receiver'));
      this.#lanes.push({ ...bench, kind, base, peer, peerBase: opened.base, completions });
    }
  }

  async measure(pageBytes: number, rounds: number, seed: number, onRound: () => void): Promise<PageMeasurement> {
    const pageCount = Math.floor(this.#totalBytes / pageBytes);
    const slotCount = pageCount * POOL_OVER_MOVED;
    const source = scatteredSlots(pageCount, mixSeed(seed, pageBytes, 0));
    const destination = scatteredSlots(pageCount, mixSeed(seed, pageBytes, 1));
    const pairs = sortedPairs(source, destination);
    const lanes: PageLane[] = [];
    for (const lane of this.#lanes) {
      const local = pageTableOf(lane.base, pageBytes, slotCount);
      await lane.content.fill({
        table: local,
        group: 0,
        run: { begin: 0, slots: source },
        tokenBegin: 0,
        tokenEnd: pageCount,
        tokenSeeds: lane.content.chainTokenSeeds(pageTokens(pageCount, pageBytes)),
        firstHead: 0,
      });
      const fragments = this.#prepare(lane, local, pageTableOf(lane.peerBase, pageBytes, slotCount), pageBytes);
      lanes.push({ ...lane, fragments, pairs, destination });
    }
    const elapsedMs: Record<CopyWay, number[]> = { memcpy: [], contiguous: [], host: [], nixl: [] };
    const contiguous = Int32Array.of(0, 0);
    // Round -1 warms up caches, mappings and connections.
    for (let round = -1; round < rounds; round++) {
      const keep = (way: CopyWay, ms: number): void => void (round >= 0 && elapsedMs[way].push(ms));
      keep('memcpy', await this.#copy(pageBytes, pairs));
      keep('contiguous', await this.#copy(pageCount * pageBytes, contiguous));
      for (const lane of lanes) keep(lane.kind, await this.#transfer(lane, pageCount * pageBytes));
      onRound();
    }
    const wrongBytes: Record<AgentKind, number | null> = { host: null, nixl: null };
    for (const lane of lanes) wrongBytes[lane.kind] = await this.#verify(lane, pageBytes, slotCount);
    return { pageBytes, pageCount, elapsedMs, wrongBytes };
  }

  async close(): Promise<void> {
    await Promise.all(this.#lanes.map(({ agent }) => agent.close(500)));
  }

  #prepare(lane: Lane, local: PageTable, remote: PageTable, pageBytes: number): FragmentTable {
    const whole = {
      srcPool: 0,
      srcOffset: 0,
      dstPool: 0,
      dstOffset: 0,
      bytes: pageBytes,
      count: 1,
      srcStride: 0,
      dstStride: 0,
    };
    return lane.agent.prepareFragments(lane.peer, local, remote, [whole]);
  }

  /** Milliseconds of plain memcpy calls from the first agent's pool into the local second one. */
  async #copy(pageBytes: number, slotPairs: Int32Array): Promise<number> {
    const [srcBase, dstBase] = [this.#lanes[0]?.base ?? 0, this.#localDestination];
    return (await plainCopyNs({ srcBase, dstBase, pageBytes, slotStride: pageBytes, slotPairs })) / 1e6;
  }

  /** From the call that hands the pages over to the last byte, as the native thread saw it. */
  async #transfer(lane: PageLane, bytes: number): Promise<number> {
    const id = this.#nextSubmission++;
    const done = lane.completions.expect(id);
    const startMs = this.#clock.now();
    lane.agent.submit({
      id,
      peer: lane.peer,
      flow: 1,
      groups: [{ fragments: lane.fragments, slotPairs: lane.pairs }],
      after: null,
    });
    const completion = await this.#receiver.orLost(done);
    if (completion.status !== 'transferred' || completion.bytes !== bytes) {
      throw (
        completion.error ??
        new TransportError(`${lane.kind}: ${completion.status}, ${completion.bytes} of ${bytes} bytes`)
      );
    }
    return completion.finishedAtMs - startMs;
  }

  async #verify(lane: PageLane, pageBytes: number, slotCount: number): Promise<number> {
    const command = {
      kind: 'verify' as const,
      lane: lane.kind,
      pageBytes,
      slotCount,
      slots: lane.destination,
      seed: pageBytes,
    };
    const { bytesChecked, wrongBytes } = await this.#receiver.ask(command, 'verified');
    // A page that was not looked at counts as wrong.
    return wrongBytes + lane.destination.length * pageBytes - bytesChecked;
  }
}
