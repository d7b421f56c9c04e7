import { describe, expect, it } from 'vitest';
import { decodeFrame, encodeFrame } from '../../../src/wire/frame-codec.js';
import type { Hello, Message, RequestData } from '../../../src/wire/messages.js';
import { transferred } from '../../fuzz/transferred-pair.js';
import type { SimAgent } from '../../sim-lite/sim-agent.js';
import { Stranger } from '../../sim-lite/stranger.js';

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
  const { pair, door, incarnation, origin } = await transferred();
  const loads = watchLoads(pair.context.agent);
  const hello = pair.network.log.find(({ message }) => message.type === 'HELLO')?.message as Hello;
  pair.network.log.length = 0;
  /** On the connection of the generation server. */
  const deliver = async (message: Message): Promise<void> => {
    door.deliver(encodeFrame(message, { incarnation }).slice(), origin);
    await pair.run(100);
  };
  return { pair, loads, hello, deliver };
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
    const { loads, hello, pair } = await world();
    const stranger = new Stranger(pair.network, 500n);
    const { endpoint } = stranger;
    const rankInfo = {
      ...hello.rankInfo,
      endpoint,
      rankEndpoints: [endpoint],
      incarnation: 500n,
      agentMetadata: Uint8Array.of(6, 6, 6),
    };
    const say = async (message: Message, incarnation = 500n): Promise<void> => {
      stranger.say(pair.context.transceiver.endpoint, message, incarnation);
      await pair.run(100);
    };

    await say({ type: 'HELLO_ACK', nonce: 1n, endpoint, answer: { accepted: true, rankInfo } });
    await say({ ...REQUEST, endpoint });
    await say({ type: 'PING', endpoint, sessions: 0, freeAuxSlots: 0 });
    // In the name of another process than it says it is.
    await say({ ...hello, rankInfo }, 501n);
    expect(pair.context.transceiver.stats().counters['protocol_error:hello_incarnation']).toBe(1);
    // Only asks who is here.
    await say({ ...hello, rankInfo, probe: true });
    // Another agent, another layout, another major: refused.
    await say({ ...hello, rankInfo: { ...rankInfo, agent: 'nixl' } });
    const [group] = rankInfo.pageTable.layerGroups;
    if (group === undefined) throw new Error('no layer group');
    const views = group.views.map((view) => ({ ...view, dtype: 'fp32' }));
    const pageTable = { ...rankInfo.pageTable, layerGroups: [{ ...group, views }] };
    await say({ ...hello, rankInfo: { ...rankInfo, pageTable } });
    await say({ ...hello, supportedMajors: [9], rankInfo });
    // At an address where nobody says that it is there.
    stranger.silent = true;
    const elsewhere = 'tcp://127.0.0.9:9999';
    await say({ ...hello, rankInfo: { ...rankInfo, endpoint: elsewhere, rankEndpoints: [elsewhere] } });
    const accepted = pair.network.log.filter(
      ({ from, message }) =>
        from === pair.context.transceiver.endpoint && message.type === 'HELLO_ACK' && message.answer.accepted,
    );
    expect(accepted).toEqual([]);
    expect(loads).toEqual([]);

    stranger.silent = false;
    await pair.run(6000, 100);
    await say({ ...hello, rankInfo });
    expect(loads).toEqual([Uint8Array.of(6, 6, 6)]);
    // Nobody but an accepted peer is sent the way into our memory.
    const described = pair.network.log.flatMap(({ from, message }) =>
      from === pair.context.transceiver.endpoint && message.type === 'HELLO' ? [message.rankInfo.agentMetadata] : [],
    );
    expect(described.length).toBeGreaterThan(0);
    expect(described.every(({ length }) => length === 0)).toBe(true);
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
    const { pair, deliver } = await world();
    await deliver(REQUEST);
    await deliver({ ...REQUEST, ticket: 78n, runs: [{ begin: 0, slots: Int32Array.of(0, 1, 2, 99) }] });
    await deliver({ type: 'STATUS', rid: REQUEST.rid, ticket: 77n, endpoint: REQUEST.endpoint });
    const answers = pair.network.log.filter(({ from }) => from === pair.context.transceiver.endpoint);
    expect(answers.map(({ message }) => message.type)).toEqual(['ACCEPTED', 'WRITER_REPORT', 'ACCEPTED']);
    expect(new Set(answers.map(({ to }) => to))).toEqual(new Set([pair.generation.transceiver.endpoint]));
  });

  it('for slots that its sender did not publish is refused', async () => {
    const { pair, deliver } = await world();
    for (const slots of [
      [0, 1, 2, 32],
      [0, 1, 2, 2 ** 31 - 1],
    ])
      await deliver({
        ...REQUEST,
        ticket: BigInt(slots[3] as number),
        runs: [{ begin: 0, slots: Int32Array.from(slots) }],
      });
    const reports = pair.network.log.flatMap(({ message }) => (message.type === 'WRITER_REPORT' ? [message] : []));
    expect(reports.map(({ outcome, errorCode }) => [outcome, errorCode])).toEqual([
      ['REFUSED', 'ERR_KVT_PROTOCOL'],
      ['REFUSED', 'ERR_KVT_PROTOCOL'],
    ]);
    expect(pair.context.transceiver.stats().counters['request_data_refused:ERR_KVT_PROTOCOL']).toBe(2);
  });
});
