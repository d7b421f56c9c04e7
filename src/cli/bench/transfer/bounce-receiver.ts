import type { PeerHandle } from '../../../agent/transfer-agent.js';
import { StateError } from '../../../errors.js';
import { type BenchAgent, openAgent } from '../open-agent.js';
import { layeredShape } from './layered-page-set.js';
import { pageTokens } from './page-set.js';
import { type PageShape, pageShape } from './page-shape.js';
import type { BounceCommand, ReceiverAnswer, ShapeSpec } from './receiver-messages.js';

interface Opened extends BenchAgent {
  readonly base: number;
  peer: PeerHandle | null;
  peerBase: number;
}

export function shapeOf({ kind, pieceBytes, totalBytes }: ShapeSpec): PageShape {
  return kind === 'layers' ? layeredShape(totalBytes) : pageShape(pieceBytes, totalBytes);
}

/** The receiving side of bounced slices: says which pages may be scattered into, and looks at them afterwards. */
export class BounceReceiver {
  readonly #opened = new Map<string, Opened>();

  async answer(command: BounceCommand): Promise<ReceiverAnswer> {
    if (command.kind === 'open-bounce') {
      const { lane, agent, device, sizeBytes, bounce } = command;
      const onDevice = device === undefined ? {} : { device };
      const bench = await openAgent(agent, null, 'transfer-receiver', { ...onDevice, path: 'bounce', bounce });
      const { base } = await bench.agent.allocatePool({ sizeBytes, ...onDevice });
      this.#opened.set(lane, { ...bench, base, peer: null, peerBase: 0 });
      return { kind: 'opened', metadata: await bench.agent.metadata(), base };
    }
    const lane = this.#opened.get(command.lane);
    if (lane === undefined) throw new StateError(`agent ${command.lane} was not opened`);
    const { agent, content, base } = lane;
    if (command.kind === 'meet') {
      lane.peer = await agent.addPeer(command.metadata, 'transfer-sender');
      lane.peerBase = command.base;
      return { kind: 'done', ms: 0 };
    }
    if (command.kind === 'stats') return { kind: 'stats', stats: agent.bounceStats?.() ?? null };
    const { peer } = lane;
    if (peer === null) throw new StateError(`agent ${command.lane} has not met its peer`);
    if (command.kind === 'expect') {
      const { source, destination, fragments } = shapeOf(command.shape);
      const table = agent.prepareInbound?.(peer, source(lane.peerBase), destination(base), fragments);
      if (table === undefined) throw new StateError('this agent does not bounce');
      await agent.expectInbound?.(peer, command.ticket, [{ key: 0, fragments: table, slots: command.slots }]);
      return { kind: 'done', ms: 0 };
    }
    if (command.kind === 'end') {
      const startMs = performance.now();
      await agent.endInbound?.(peer, command.ticket);
      return { kind: 'done', ms: performance.now() - startMs };
    }
    const { shape: spec, slots, seed, canaryMs } = command;
    const shape = shapeOf(spec);
    const tokens = slots.length * shape.tokensPerPage;
    const job = {
      table: shape.destination(base),
      group: 0,
      run: { begin: 0, slots },
      tokenBegin: 0,
      tokenEnd: tokens,
      tokenSeeds: content.chainTokenSeeds(pageTokens(tokens, seed)),
      firstHead: shape.firstHead,
    };
    if (canaryMs !== undefined) {
      await content.fill(job);
      await new Promise((resolve) => setTimeout(resolve, canaryMs));
    }
    const { bytesChecked, wrongBytes } = await content.verify(job);
    return { kind: 'verified', bytesChecked, wrongBytes };
  }

  async close(deadlineMs: number): Promise<void> {
    await Promise.all([...this.#opened.values()].map(({ agent }) => agent.close(deadlineMs)));
  }
}
