// One stage of an agent's life, in a process of its own. argv: path of agent/native-agent.js, stage, more for some stages.
import { createRequire } from 'node:module';
import { isMainThread, Worker } from 'node:worker_threads';

const [modulePath, stage, extra] = isMainThread ? process.argv.slice(2) : process.argv.slice(2, 5);
const { createAgent } = await import(modulePath);

const SLOT = 1 << 20;
const SLOTS = 64;

/** Two agents, a modelled link that takes half a second for what is submitted, and the transfer under way. */
async function transferring() {
  const writer = await createAgent({ kind: 'host', name: 'writer', linkGbps: 1 });
  const target = await createAgent({ kind: 'host', name: 'target' });
  const [from, to] = [
    await writer.allocatePool({ sizeBytes: SLOT * SLOTS }),
    await target.allocatePool({ sizeBytes: SLOT * SLOTS }),
  ];
  const peer = await writer.addPeer(await target.metadata(), 'target');
  const table = ({ base }) => ({
    pools: [{ base, memory: { kind: 'host' }, slotBytes: SLOT, slotStride: SLOT, slotCount: SLOTS }],
    layerGroups: [],
    aux: null,
  });
  const whole = {
    srcPool: 0,
    srcOffset: 0,
    dstPool: 0,
    dstOffset: 0,
    bytes: SLOT,
    count: 1,
    srcStride: 0,
    dstStride: 0,
  };
  const fragments = writer.prepareFragments(peer, table(from), table(to), [whole]);
  const statuses = [];
  writer.onCompletions((batch) => statuses.push(...batch.map((notice) => notice.status)));
  const slotPairs = Int32Array.from({ length: 2 * SLOTS }, (_, i) => i >> 1);
  for (let id = 1; id <= 3; id++) {
    writer.submit({ id, peer, flow: id, groups: [{ fragments, slotPairs }], after: null });
  }
  // Waits for an event that never comes.
  writer.submit({ id: 4, peer, flow: 4, groups: [{ fragments, slotPairs }], after: writer.createEvent() });
  return { writer, target, statuses, metadata: await target.metadata() };
}

const stages = {
  async end() {
    await transferring();
  },
  async 'end-idle'() {
    await createAgent({ kind: 'host', name: 'idle' });
  },
  async 'end-closed'() {
    const { writer, target, statuses } = await transferring();
    const reports = [await writer.close(10_000), await target.close(10_000)];
    console.log(JSON.stringify({ reports, statuses: statuses.toSorted() }));
  },
  async 'close-deadline'() {
    const { writer, statuses } = await transferring();
    const report = await writer.close(0);
    console.log(JSON.stringify({ report, statuses: statuses.toSorted() }));
  },
  async exit() {
    await transferring();
    process.exit(7);
  },
  async 'exit-while-opening'() {
    void createAgent({ kind: 'host', name: 'opening' });
    process.exit(7);
  },
  async throw() {
    await transferring();
    setImmediate(() => {
      throw new Error('thrown while transfers run');
    });
  },
  async 'listener-throws'() {
    const { writer } = await transferring();
    writer.onCompletions(() => {
      throw new Error('thrown by the listener');
    });
    setInterval(() => {}, 1000);
  },
  async wait() {
    const { metadata } = await transferring();
    const nameLength = metadata[10] + 256 * metadata[11];
    console.log(JSON.stringify({ socket: Buffer.from(metadata.subarray(48, 48 + nameLength)).toString() }));
    setInterval(() => {}, 1000);
  },
  async worker() {
    const worker = new Worker(new URL(import.meta.url), { argv: [modulePath, 'worker-body'] });
    await new Promise((resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
    });
    const code = await worker.terminate();
    const { writer, target } = await transferring();
    const reports = [await writer.close(10_000), await target.close(10_000)];
    console.log(JSON.stringify({ code, reports }));
  },
  async 'worker-body'() {
    const { parentPort } = await import('node:worker_threads');
    await transferring();
    parentPort.postMessage('transferring');
    setInterval(() => {}, 1000);
  },
  async 'worker-ends'() {
    const worker = new Worker(new URL(import.meta.url), { argv: [modulePath, 'end'] });
    const code = await new Promise((resolve, reject) => {
      worker.once('exit', resolve);
      worker.once('error', reject);
    });
    console.log(JSON.stringify({ code }));
  },
  /** `extra` is a copy of the addon: both are loaded and used, and each knows its own agents only. */
  async 'two-copies'() {
    const { writer, target, statuses } = await transferring();
    const other = createRequire(import.meta.url)(extra);
    const records = [];
    const noBounce = new Float64Array(0);
    const agent = new other.NativeAgent('host', 'copy', Number.NaN, '', '', 'auto', -1, 0, noBounce, (numbers) =>
      records.push(numbers),
    );
    await agent.open();
    const base = await agent.allocateRegion(4096, -1);
    // Memory of the other copy's agents is nobody's here.
    const theirs = (await writer.allocatePool({ sizeBytes: 4096 })).base;
    const refused = (() => {
      try {
        return other.plainCopyNs(base, theirs, 8, 8, Int32Array.of(0, 0));
      } catch (error) {
        return error.status;
      }
    })();
    const report = await agent.close(1000);
    await Promise.all([writer.close(10_000), target.close(10_000)]);
    console.log(JSON.stringify({ base: base > 0, report, refused, answered: statuses.length }));
  },
};

await stages[stage]();
