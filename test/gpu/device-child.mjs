// The other process of the GPU tests: one agent with one device pool, driven by messages.
import { createHash } from 'node:crypto';
import { createAgent } from '../../dist/agent/native-agent.js';
import { createPageContent } from '../../dist/agent/native-page-content.js';
import { fragment, pairsOf, poolTable, Random } from './support.mjs';

let agent;
let pool;
const advice = [];
let device;
let writer;
let prepared;

const commands = {
  async open({ options, sizeBytes, device: gpu }) {
    device = gpu;
    agent = await createAgent(options);
    agent.onAdvice((message) => advice.push(message));
    pool = await agent.allocatePool({ sizeBytes, ...(gpu === undefined ? {} : { device: gpu }) });
    return { metadata: await agent.metadata(), base: pool.base };
  },
  async write({ bytes, offset = 0 }) {
    await agent.writeMemory(pool.base + offset, bytes);
    return {};
  },
  async read({ offset = 0, length }) {
    return { bytes: await agent.readMemory(pool.base + offset, length) };
  },
  async digest() {
    const bytes = await agent.readMemory(pool.base, pool.sizeBytes);
    return { sha256: createHash('sha256').update(bytes).digest('hex') };
  },
  async verify({ job }) {
    const content = createPageContent();
    return content.verify({ ...job, tokenSeeds: content.chainTokenSeeds(job.tokens) });
  },
  async advice() {
    return { advice };
  },
  /** Moves scattered pages into the peer's pool, once. */
  async move({ metadata, base, sizeBytes, pageBytes }) {
    const peer = await agent.addPeer(metadata, 'target');
    const fragments = [fragment({ bytes: pageBytes })];
    const table = agent.prepareFragments(
      peer,
      poolTable(pool.base, pool.sizeBytes, pageBytes, 0),
      poolTable(base, sizeBytes, pageBytes, 0),
      fragments,
    );
    const count = Math.floor(Math.min(pool.sizeBytes, sizeBytes) / pageBytes);
    const slotPairs = pairsOf(new Random(5).different(count, count), new Random(6).different(count, count));
    const ended = new Promise((resolve) => agent.onCompletions(([first]) => resolve(first)));
    agent.submit({ id: 1, peer, flow: 1, groups: [{ fragments: table, slotPairs }], after: null });
    const { status, error } = await ended;
    const explained = agent.explain(peer, { groups: [{ group: 0, fragments, slotPairs }] });
    return { status, error: error?.message, explained, advice, slotPairs };
  },
  /** Writes scattered pages into the peer's pool without end, until this process is killed. */
  async flood({ metadata, base, sizeBytes, pageBytes }) {
    const peer = await agent.addPeer(metadata, 'target');
    const table = agent.prepareFragments(
      peer,
      poolTable(pool.base, pool.sizeBytes, pageBytes, 0),
      poolTable(base, sizeBytes, pageBytes, 0),
      [fragment({ bytes: pageBytes })],
    );
    const random = new Random(7);
    const count = Math.min(Math.floor(pool.sizeBytes / pageBytes), Math.floor(sizeBytes / pageBytes));
    const slotPairs = pairsOf(random.different(count, count), random.different(count, count));
    let id = 1;
    const submit = () => {
      agent.submit({ id: id++, peer, flow: id % 3, groups: [{ fragments: table, slotPairs }], after: null });
    };
    agent.onCompletions((batch) => batch.forEach(submit));
    for (let i = 0; i < 16; i++) submit();
    return {};
  },
  /** Whose slices are bounced here. */
  async meet({ metadata, base, sizeBytes }) {
    writer = { peer: await agent.addPeer(metadata, 'writer'), base, sizeBytes };
    return {};
  },
  /** Without groups: those of the last time. */
  async expect({ ticket, groups }) {
    prepared =
      groups?.map(({ key, fragments, slots, slotBytes, fromSlotBytes = slotBytes }) => {
        const from = poolTable(writer.base, writer.sizeBytes, fromSlotBytes, device);
        const to = poolTable(pool.base, pool.sizeBytes, slotBytes, device);
        return { key, slots, fragments: agent.prepareInbound(writer.peer, from, to, fragments) };
      }) ?? prepared;
    await agent.expectInbound(writer.peer, ticket, prepared);
    return {};
  },
  async endInbound({ ticket }) {
    await agent.endInbound(writer.peer, ticket);
    return {};
  },
  async rss() {
    globalThis.gc?.();
    return { bytes: process.memoryUsage().rss };
  },
  async stats() {
    return { stats: agent.bounceStats() };
  },
  /** Bounces all its slots into the peer's without end, until this process is killed. */
  async floodBounced({ metadata, base, sizeBytes, slotBytes, ticket }) {
    const peer = await agent.addPeer(metadata, 'target');
    const table = agent.prepareFragments(
      peer,
      poolTable(pool.base, pool.sizeBytes, slotBytes, device),
      poolTable(base, sizeBytes, slotBytes, device),
      [fragment({ bytes: slotBytes })],
    );
    const count = Math.floor(sizeBytes / slotBytes);
    const all = Int32Array.from({ length: count }, (_, i) => i);
    const slotPairs = pairsOf(all, all);
    let id = 1;
    const submit = () => {
      const groups = [{ fragments: table, slotPairs, key: 0 }];
      agent.submit({ id: id++, peer, flow: id % 3, groups, after: null, ticket });
    };
    agent.onCompletions((batch) => batch.filter(({ kind }) => kind === 'completion').forEach(submit));
    for (let i = 0; i < 8; i++) submit();
    return {};
  },
  async close() {
    return { report: await agent.close(5000) };
  },
};

process.on('disconnect', () => {
  setTimeout(() => process.exit(1), 10_000).unref();
  void Promise.resolve(agent?.close(2000)).then(() => process.exit(0));
});
process.on('message', async ({ kind, ...fields }) => {
  try {
    process.send(await commands[kind](fields));
  } catch (error) {
    process.send({ error: { message: error.message, code: error.code } });
  }
});
