// The other process of process-suite.ts: one agent with one pool, driven by messages.
// argv: path of agent/native-agent.js, kind, pool bytes.
import { createHash } from 'node:crypto';

const [modulePath, kind, poolBytes] = process.argv.slice(2);
const { createAgent } = await import(modulePath);
const agent = await createAgent({ kind, name: 'child' });
const pool = await agent.allocatePool({ sizeBytes: Number(poolBytes) });

process.on('disconnect', () => process.exit(0));
process.on('message', async (message) => {
  switch (message.kind) {
    case 'digest': {
      const bytes = agent.readBytes(pool.base, pool.sizeBytes);
      process.send({ kind: 'digest', sha256: createHash('sha256').update(bytes).digest('hex') });
      break;
    }
    case 'write-back': {
      const peer = await agent.addPeer(Buffer.from(message.metadata, 'base64'), 'parent');
      const table = (base, sizeBytes) => ({
        pools: [{ base, memory: { kind: 'host' }, slotBytes: sizeBytes, slotStride: sizeBytes, slotCount: 1 }],
        layerGroups: [],
        aux: null,
      });
      const whole = { srcPool: 0, srcOffset: 0, dstPool: 0, dstOffset: 0, bytes: pool.sizeBytes, count: 1 };
      const fragments = agent.prepareFragments(
        peer,
        table(pool.base, pool.sizeBytes),
        table(message.base, pool.sizeBytes),
        [{ ...whole, srcStride: 0, dstStride: 0 }],
      );
      agent.onCompletions((batch) => process.send({ kind: 'written', status: batch[0].status }));
      agent.submit({
        id: 1,
        peer,
        flow: 0,
        groups: [{ fragments, slotPairs: Int32Array.of(0, 0) }],
        after: null,
      });
      break;
    }
    case 'close':
      process.send({ kind: 'closed', report: await agent.close(5000) });
      process.disconnect();
      break;
  }
});

process.send({ kind: 'ready', metadata: Buffer.from(await agent.metadata()).toString('base64'), base: pool.base });
