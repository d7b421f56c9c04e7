// The products of a prefill: pages behind them on the same stream, bad shapes, memory given back.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { GemmWorkload } from '../../dist/agent/gemm-workload.js';
import { createAgent } from '../../dist/agent/native-agent.js';
import { createPageContent } from '../../dist/agent/native-page-content.js';
import { pageTableOf } from '../../dist/cli/bench/transfer/page-set.js';
import { skip } from './support.mjs';

const SHAPE = {
  layers: 4,
  hiddenSize: 512,
  heads: 8,
  kvHeads: 2,
  headDim: 64,
  intermediateSize: 1024,
  maxChunkTokens: 256,
  maxContextTokens: 2048,
};
const PAGES = 64;
const PAGE_BYTES = 4096;

test('pages behind the products hold what they must when the event is reached', { skip }, async () => {
  const agent = await createAgent({ kind: 'host', name: 'gemm', device: 0 });
  const gemm = await GemmWorkload.open(0, SHAPE);
  try {
    assert.match(gemm.library.path, /cublas/);
    assert.ok(gemm.library.version >= 120000);
    const { base } = await agent.allocatePool({ sizeBytes: PAGES * PAGE_BYTES, device: 0 });
    const content = createPageContent();
    const job = {
      table: pageTableOf(base, PAGE_BYTES, PAGES),
      group: 0,
      run: { begin: 0, slots: Int32Array.from({ length: PAGES }, (_, i) => PAGES - 1 - i) },
      tokenBegin: 0,
      tokenEnd: PAGES,
      tokenSeeds: content.chainTokenSeeds(Uint32Array.from({ length: PAGES }, (_, i) => i)),
      firstHead: 0,
    };
    assert.ok((await content.verify(job)).wrongBytes > 0);
    for (const before of [0, 300, 1792]) await gemm.forward(256, before);
    const step = await gemm.forward(100, 77, [job]);
    assert.equal(step.bytesWritten, PAGES * PAGE_BYTES);
    await step.done;
    assert.equal(step.event.query(), 'reached');
    const { bytesChecked, wrongBytes } = await content.verify(job);
    assert.deepEqual({ bytesChecked, wrongBytes }, { bytesChecked: PAGES * PAGE_BYTES, wrongBytes: 0 });
    await assert.rejects(gemm.forward(257, 0), { code: 'ERR_KVT_ARGUMENT', message: /257/ });
    await assert.rejects(gemm.forward(256, 1793), { code: 'ERR_KVT_ARGUMENT' });
  } finally {
    await gemm.close();
    assert.equal((await agent.close(5000)).drained, true);
  }
  await gemm.close();
  await assert.rejects(gemm.forward(1, 0), { code: 'ERR_KVT_STATE' });
});

test('shapes and libraries that cannot be used are refused', { skip }, async () => {
  await assert.rejects(GemmWorkload.open(0, { ...SHAPE, kvHeads: 3 }), { code: 'ERR_KVT_ARGUMENT' });
  await assert.rejects(GemmWorkload.open(0, { ...SHAPE, hiddenSize: 2 ** 22, intermediateSize: 2 ** 22 }), {
    code: 'ERR_KVT_RESOURCE',
    message: /MiB/,
  });
  await assert.rejects(GemmWorkload.open(99, SHAPE), { code: 'ERR_KVT_ARGUMENT' });
});
