import { describe, expect, it } from 'vitest';
import { SILENT_LOGGER } from '../../../src/observe/logger.js';
import { Observation } from '../../../src/observe/observation.js';
import { garbageCollector } from '../../fuzz/collect-garbage.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { TransferPair } from '../../sim-lite/transfer-pair.js';

const ROUNDS = 1000;

describe('transceivers that come and go under one observation', () => {
  it('leave nothing behind: no listener, no total that falls, no object', async () => {
    const collect = garbageCollector();
    const observation = new Observation({
      config: { metrics: true, tracing: true },
      logger: SILENT_LOGGER,
      clock: new FakeClock(),
    });
    const registry = observation.metrics?.registry;
    const gone: WeakRef<object>[] = [];
    let series = 0;
    for (let round = 0; round < ROUNDS; round += 1) {
      const pair = new TransferPair();
      const { transceiver } = await pair.start('only');
      const detach = observation.attach({ transceiver });
      const closing = transceiver.close(0);
      await pair.clock.run(10);
      await closing;
      detach();
      if (round % 100 === 0) {
        const text = (await registry?.metrics()) ?? '';
        expect(text).toContain('kv_transceiver_aux_slots');
        series ||= text.split('\n').length;
        expect(text.split('\n').length).toBe(series);
      }
      gone.push(new WeakRef(transceiver));
    }
    await new Promise(setImmediate);
    collect();
    collect();
    // The last one may still be on the stack.
    expect(gone.filter((ref) => ref.deref() !== undefined).length).toBeLessThanOrEqual(2);
  });
});
