import { describe, expect, it } from 'vitest';
import { decodeFrame, encodeFrame } from '../../../src/wire/frame-codec.js';
import type { Hello, Message, RequestData } from '../../../src/wire/messages.js';
import { transferred } from '../../fuzz/transferred-pair.js';
import type { SimAgent } from '../../sim-lite/sim-agent.js';

/** Metadata that reaches the agent from now on. */
function watchLoads(agent: SimAgent): Uint8Array[] {
  const loads: Uint8Array[] = [];
  const addPeer = agent.addPeer.bind(agent);
  agent.addPeer = (metadata, peerId) => {
    loads.push(metadata);
    return addPeer(metadata, peerId);
  };
  return loads;
}

async function world() {
  const { pair, door, incarnation } = await transferred();
  const loads = watchLoads(pair.context.agent);
  const hello = pair.network.log.find(({ message }) => message.type === 'HELLO')?.message as Hello;
  pair.network.log.length = 0;
  const deliver = async (message: Message, sender: bigint): Promise<void> => {
    door.deliver(encodeFrame(message, { incarnation: sender }).slice());
    await pair.run(100);
  };
  return { pair, loads, hello, incarnation, deliver };
}

const REQUEST: RequestData = {
  type: 'REQUEST_DATA',
  rid: (1n << 41n) + 50n,
  ticket: 77n,
  timeLeftMs: 1000,
  promptLen: 16,
  cachedTokens: 0,
  auxSlot: -1,
  endpoint: 'tcp://127.0.0.9:9999',
  traceparent: '',
  runs: [{ begin: 0, slots: Int32Array.of(0, 1, 2, 3) }],
};

describe('memory descriptions', () => {
  it('reach the agent from an accepted HELLO, and from nothing else', async () => {
    const { loads, hello, deliver, pair } = await world();
    const endpoint = 'tcp://127.0.0.9:9999';
    const rankInfo = {
      ...hello.rankInfo,
      endpoint,
      rankEndpoints: [endpoint],
      incarnation: 500n,
      agentMetadata: Uint8Array.of(6, 6, 6),
    };

    await deliver({ type: 'HELLO_ACK', nonce: 1n, endpoint, answer: { accepted: true, rankInfo } }, 500n);
    await deliver({ ...REQUEST, endpoint }, 500n);
    await deliver({ type: 'PING', endpoint, sessions: 0, freeAuxSlots: 0 }, 500n);
    // In the name of another process than it says it is.
    await deliver({ ...hello, rankInfo }, 501n);
    expect(pair.context.transceiver.stats().counters['protocol_error:hello_incarnation']).toBe(1);
    // Another agent, another layout, another major: refused.
    await deliver({ ...hello, rankInfo: { ...rankInfo, agent: 'nixl' } }, 500n);
    const [group] = rankInfo.pageTable.layerGroups;
    if (group === undefined) throw new Error('no layer group');
    const views = group.views.map((view) => ({ ...view, dtype: 'fp32' }));
    const pageTable = { ...rankInfo.pageTable, layerGroups: [{ ...group, views }] };
    await deliver({ ...hello, rankInfo: { ...rankInfo, pageTable } }, 500n);
    await deliver({ ...hello, supportedMajors: [9], rankInfo }, 500n);
    expect(pair.network.sentTypes(({ message }) => message.type === 'HELLO_ACK' && message.answer.accepted)).toEqual(
      [],
    );
    expect(loads).toEqual([]);

    await deliver({ ...hello, rankInfo }, 500n);
    expect(loads).toEqual([Uint8Array.of(6, 6, 6)]);
  });
});

describe('a request', () => {
  it('has no field for an agent, a path, a file or an address to write to', () => {
    const { message } = decodeFrame(encodeFrame(REQUEST, { incarnation: 1n }));
    expect(Object.keys(message).toSorted()).toEqual(
      [
        'auxSlot',
        'cachedTokens',
        'endpoint',
        'promptLen',
        'rid',
        'runs',
        'ticket',
        'timeLeftMs',
        'traceparent',
        'type',
      ].toSorted(),
    );
  });

  it('of a peer is answered to that peer, whatever endpoint it names', async () => {
    const { pair, incarnation, deliver } = await world();
    await deliver(REQUEST, incarnation);
    await deliver({ ...REQUEST, ticket: 78n, runs: [{ begin: 0, slots: Int32Array.of(0, 1, 2, 99) }] }, incarnation);
    await deliver({ type: 'STATUS', rid: REQUEST.rid, ticket: 77n, endpoint: REQUEST.endpoint }, incarnation);
    const answers = pair.network.log.filter(({ from }) => from === pair.context.transceiver.endpoint);
    expect(answers.map(({ message }) => message.type)).toEqual(['ACCEPTED', 'WRITER_REPORT', 'ACCEPTED']);
    expect(new Set(answers.map(({ to }) => to))).toEqual(new Set([pair.generation.transceiver.endpoint]));
  });

  it('for slots that its sender did not publish is refused', async () => {
    const { pair, incarnation, deliver } = await world();
    for (const slots of [
      [0, 1, 2, 32],
      [0, 1, 2, 2 ** 31 - 1],
    ])
      await deliver(
        { ...REQUEST, ticket: BigInt(slots[3] as number), runs: [{ begin: 0, slots: Int32Array.from(slots) }] },
        incarnation,
      );
    const reports = pair.network.log.flatMap(({ message }) => (message.type === 'WRITER_REPORT' ? [message] : []));
    expect(reports.map(({ outcome, errorCode }) => [outcome, errorCode])).toEqual([
      ['REFUSED', 'ERR_KVT_PROTOCOL'],
      ['REFUSED', 'ERR_KVT_PROTOCOL'],
    ]);
    expect(pair.context.transceiver.stats().counters['request_data_refused']).toBe(2);
  });
});
