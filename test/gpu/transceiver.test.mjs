// Requests end to end with pages on GPUs: ZeroMQ, sessions, slices behind each chunk, aux buffer in host memory.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BenchWorker } from '../../dist/cli/bench/ttft/bench-worker.js';
import { devicePairs, skip, skipNixl, withLimit } from './support.mjs';

async function serve(agent, [from, to], bounceMb = null) {
  // Between agents of one process UCX goes through host memory, at a hundredth of the speed between two.
  const requests = bounceMb === null ? 6 : 1;
  const events = [];
  let wake = () => {};
  const settings = (role, device) => ({
    role,
    model: 'llama-3.1-8b',
    agent,
    linkGbps: null,
    bounceMb,
    device,
    shape: {
      ...{ tp: 1, cp: 1, layersPerStage: [32] },
      ...{ tokensPerBlock: 32, blockLayout: 'HND', poolLayout: 'per-layer' },
    },
    slots: { blocks: 600, states: 0 },
    peerTokensPerBlock: 32,
    chunkTokens: 512,
    tflops: 20_000,
    concurrency: requests,
    listenPort: 0,
    seed: 3,
  });
  const say = (event) => {
    events.push(event);
    wake();
  };
  const until = (kind, count) =>
    withLimit(
      (async () => {
        while (events.filter((event) => event.kind === kind).length < count) {
          const failed = events.find((event) => event.kind === 'requestFailed');
          assert.equal(failed, undefined, JSON.stringify(failed));
          await new Promise((resolve) => {
            wake = resolve;
          });
        }
        return events.filter((event) => event.kind === kind);
      })(),
      `${count} of ${kind}`,
    );
  const context = await BenchWorker.open(settings('context', from), say);
  const generation = await BenchWorker.open(settings('generation', to), say);
  const endpoint = events[0].endpoint;
  try {
    for (let key = 1; key <= requests; key++) {
      const prompt = { kind: 'random', seed: BigInt(key), tokenCount: 1000 + 700 * key };
      const of = { key, prompt, warmTokens: 0 };
      await Promise.all([context.prepare({ kind: 'prepare', ...of }), generation.prepare({ kind: 'prepare', ...of })]);
    }
    for (let key = 1; key <= requests; key++) {
      const submit = {
        kind: 'submit',
        key,
        disaggRequestId: (1n << 41n) + BigInt(key),
        contextEndpoint: endpoint,
        policy: { pipelined: key % 2 === 0, earlyPrefix: false },
        maxTokens: 1,
      };
      generation.submit(submit);
      context.submit(submit);
    }
    const done = await until('generationDone', requests);
    for (const { report } of done) {
      assert.deepEqual(
        report.ranks.map(({ wrongBytes, bytesVerified }) => [wrongBytes, bytesVerified > 0]),
        [[0, true]],
      );
    }
    await until('contextDone', requests);
  } finally {
    assert.deepEqual(await Promise.all([context.close(5000), generation.close(5000)]), [true, true]);
  }
}

for (const devices of devicePairs) {
  test(`requests with pages on GPU ${devices[0]} and ${devices[1]}, p2p`, { skip }, () => serve('host', devices));
}
test('requests with pages on GPUs, bounced', { skip: skipNixl }, () => serve('nixl', devicePairs.at(-1), 64));
test('requests with pages on GPUs and a NIXL agent', { skip: skipNixl }, () => serve('nixl', devicePairs.at(-1)));
