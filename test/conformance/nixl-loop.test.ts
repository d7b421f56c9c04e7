import { createHash, randomFillSync } from 'node:crypto';
import { expect, it } from 'vitest';
import { capabilities } from '../../src/agent/native.js';
import { createAgent } from '../../src/agent/native-agent.js';
import { NixlLoop } from '../../src/agent/nixl-loop.js';

const { nixl } = await capabilities();
if (!nixl.available) {
  const why = `THE NIXL LOOP IS NOT TESTED: ${nixl.reason}`;
  if ((process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('nixl')) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
}
if (nixl.path !== null) process.env['KV_TRANSCEIVER_NIXL_LIB'] = nixl.path;

const SLOT = 1 << 20;
const SLOTS = 8;

const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

it.skipIf(!nixl.available)('a bare loop over NIXL moves the slots it is given and no others', async () => {
  const writer = await createAgent({ kind: 'nixl', name: 'loop-writer' });
  const receiver = await createAgent({ kind: 'nixl', name: 'loop-receiver' });
  const source = await writer.allocatePool({ sizeBytes: SLOTS * SLOT });
  const target = await receiver.allocatePool({ sizeBytes: SLOTS * SLOT });
  const bytes = randomFillSync(new Uint8Array(SLOTS * SLOT));
  writer.writeBytes(source.base, bytes);
  const loop = await NixlLoop.open(source, await receiver.metadata());
  try {
    expect(await loop.time(source.base, target.base, SLOT, Int32Array.of(0, 5, 3, 1))).toBeGreaterThan(0);
    const expected = new Uint8Array(SLOTS * SLOT);
    expected.set(bytes.subarray(0, SLOT), 5 * SLOT);
    expected.set(bytes.subarray(3 * SLOT, 4 * SLOT), SLOT);
    expect(sha256(receiver.readBytes(target.base, SLOTS * SLOT))).toBe(sha256(expected));
    const outside = { code: 'ERR_KVT_ARGUMENT', message: expect.stringMatching(/leaves the memory/) };
    await expect(loop.time(source.base, target.base, SLOT, Int32Array.of(SLOTS, 0))).rejects.toMatchObject(outside);
    await expect(loop.time(source.base, target.base, SLOT, Int32Array.of(0, SLOTS))).rejects.toMatchObject(outside);
    await expect(loop.time(source.base, target.base, SLOT, Int32Array.of())).rejects.toThrow('needs runs');
  } finally {
    await loop.close();
    await loop.close();
    await writer.close(2000);
    await receiver.close(2000);
  }
  await expect(loop.time(source.base, target.base, SLOT, Int32Array.of(0, 0))).rejects.toThrow('not open');
});
