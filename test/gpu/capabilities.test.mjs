// What the package says of a machine with GPUs. Run by `node --test` on a GPU host (scripts/gpu-test.sh), where vitest is not.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { capabilities } from '../../dist/agent/native.js';

const isRequired = (process.env.KV_TRANSCEIVER_REQUIRE ?? '').split(',').includes('cuda');

function visibleGpus() {
  const listed = execFileSync('nvidia-smi', ['--query-gpu=name', '--format=csv,noheader'], { encoding: 'utf8' });
  return listed.trim().split('\n').length;
}

test('capabilities name the driver and count its GPUs', async (t) => {
  const { cuda } = await capabilities();
  if (!cuda.available && !isRequired) {
    t.skip(`needs a GPU: ${cuda.reason}`);
    return;
  }
  assert.equal(cuda.reason, null);
  assert.equal(cuda.available, true);
  assert.equal(cuda.library, 'libcuda.so.1');
  assert.ok(cuda.driverVersion >= 11_040, `driver ${cuda.driverVersion}`);
  assert.equal(cuda.deviceCount, visibleGpus());
});

test('the driver says why a process that may see no GPU has none', async () => {
  const child = execFileSync(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { capabilities } from ${JSON.stringify(new URL('../../dist/agent/native.js', import.meta.url).href)};
       process.stdout.write(JSON.stringify((await capabilities()).cuda));`,
    ],
    { encoding: 'utf8', env: { ...process.env, CUDA_VISIBLE_DEVICES: '' } },
  );
  const cuda = JSON.parse(child);
  assert.equal(cuda.available, false);
  assert.match(cuda.reason, /CUDA_VISIBLE_DEVICES|nvidia-smi|install the NVIDIA driver/);
});
