// A receiver in a process of its own, for nixl.test.ts: node nixl-target.mjs AGENT_MODULE POOL_BYTES, forked with an IPC channel.
// Answers `digest` with the SHA-256 of its pool and `close` with its close report. Ends when its parent does.
import { createHash } from 'node:crypto';
import process from 'node:process';

const [agentModule, poolBytes] = process.argv.slice(2);
const { createAgent } = await import(agentModule);
const agent = await createAgent({ kind: 'nixl', name: 'target' });
const pool = await agent.allocatePool({ sizeBytes: Number(poolBytes) });

const CHUNK = 1 << 20;
function digest() {
  const hash = createHash('sha256');
  for (let at = 0; at < pool.sizeBytes; at += CHUNK) {
    hash.update(agent.readBytes(pool.base + at, Math.min(CHUNK, pool.sizeBytes - at)));
  }
  return hash.digest('hex');
}

process.on('disconnect', () => process.exit(0));
process.on('message', async (command) => {
  if (command === 'digest') process.send({ digest: digest() });
  if (command === 'close') process.send({ report: await agent.close(5000) });
});
process.send({ name: agent.name, base: pool.base, metadata: await agent.metadata() });
