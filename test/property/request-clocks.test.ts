import fc from 'fast-check';
import { expect, it } from 'vitest';
import { RequestClocks } from '../../src/session/request-clocks.js';
import { FakeClock } from '../sim-lite/fake-clock.js';

const limits = fc.record({
  transferQueueTimeoutMs: fc.integer({ min: 5, max: 200 }),
  noProgressTimeoutMs: fc.integer({ min: 5, max: 200 }),
  kvTransferTimeoutMs: fc.integer({ min: 5, max: 200 }),
});
const happening = fc.constantFrom('peerArrived', 'progress', 'signOfLife', 'expectProgress', 'busy', 'free');
const life = fc.array(fc.record({ afterMs: fc.integer({ min: 0, max: 40 }), what: happening }), { maxLength: 40 });

it('RequestClocks: being asked often changes nothing of what is answered', () => {
  fc.assert(
    fc.property(limits, life, (clockLimits, steps) => {
      for (let end = 0; end <= steps.length; end++) {
        const clock = new FakeClock(0);
        const [asked, fresh] = [new RequestClocks(clock, clockLimits), new RequestClocks(clock, clockLimits)];
        for (const { afterMs, what } of steps.slice(0, end)) {
          clock.advance(afterMs);
          asked.expired();
          for (const clocks of [asked, fresh]) {
            if (what === 'busy' || what === 'free') clocks.setBusy(what === 'busy');
            else clocks[what]();
          }
        }
        expect(asked.expired()).toEqual(fresh.expired());
      }
    }),
    { numRuns: 300 },
  );
});
