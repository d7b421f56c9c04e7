import { describe, it } from 'vitest';
import { capabilities } from '../../src/agent/native.js';
import { faultSuite } from './faults/fault-suite.js';

const { nixl } = await capabilities();

if (nixl.available) {
  faultSuite('nixl', {
    UCX_TLS: 'shm,tcp,self',
    UCX_NET_DEVICES: 'lo',
    ...(nixl.path === null ? {} : { KV_TRANSCEIVER_NIXL_LIB: nixl.path }),
  });
} else {
  const why = `faults of two nixl servers ARE NOT TESTED: ${nixl.reason}`;
  if ((process.env['KV_TRANSCEIVER_REQUIRE'] ?? '').split(/[\s,]+/).includes('nixl')) throw new Error(why);
  process.stderr.write(`\n${why}\n\n`);
  describe.skip(`faults of two nixl servers (SKIPPED: ${nixl.reason})`, () => {
    it('end well', () => {});
  });
}
