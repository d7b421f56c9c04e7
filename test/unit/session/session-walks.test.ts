import { describe, expect, it } from 'vitest';
import { CallbackGuard } from '../../../src/session/callback-guard.js';
import { Counters } from '../../../src/session/counters.js';
import { SessionWalks, type Walk } from '../../../src/session/session-walks.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { SpentClock } from '../../sim-lite/spent-clock.js';

function setup(clock: FakeClock) {
  const log: string[] = [];
  const guard = new CallbackGuard({ clock, counters: new Counters(), warn: (message) => log.push(message) });
  const walks = new SessionWalks({ clock, guard });
  const walkOf = (name: string, sessions: readonly number[]): Walk<number> => ({
    what: name,
    begin: () => {
      log.push(`${name} begins`);
      return sessions;
    },
    each: (session) => void log.push(`${name} ${session}`),
    end: () => void log.push(`${name} ends`),
  });
  return { log, walks, walkOf };
}

describe('walks over sessions', () => {
  it('are over at once when they fit into a portion', () => {
    const { log, walks, walkOf } = setup(new FakeClock());
    expect(walks.run(walkOf('loss', [1, 2, 3]))).toBeNull();
    expect(walks.run(walkOf('nothing', []))).toBeNull();
    expect(log).toEqual(['loss begins', 'loss 1', 'loss 2', 'loss 3', 'loss ends', 'nothing begins', 'nothing ends']);
  });

  it('go on in the next turn, and those that come meanwhile wait for their end', async () => {
    const clock = new SpentClock();
    const { log, walks, walkOf } = setup(clock);
    const loss = walks.run(walkOf('loss', [1, 2]));
    const ready = walks.run(walkOf('ready', [1]));
    loss?.then(() => log.push('loss is over')).catch(() => {});
    ready?.then(() => log.push('ready is over')).catch(() => {});
    expect(log.splice(0)).toEqual(['loss begins', 'loss 1']);
    await clock.turn();
    expect(log.splice(0)).toEqual(['loss 2']);
    await clock.turn();
    expect(log.splice(0)).toEqual(['loss ends', 'ready begins', 'ready 1', 'loss is over']);
    await clock.turn();
    expect(log.splice(0)).toEqual(['ready ends', 'ready is over']);
    // The line is empty: whoever comes next begins at once.
    void walks.run(walkOf('end', [1]));
    expect(log).toEqual(['end begins', 'end 1']);
  });

  it('begun by what another one does, wait for it as well', () => {
    const { log, walks, walkOf } = setup(new FakeClock());
    const outer = walkOf('outer', [1, 2]);
    const each = (session: number): void => {
      outer.each(session);
      if (session === 1) expect(walks.run(walkOf('inner', [9]))).toBeInstanceOf(Promise);
    };
    expect(walks.run({ ...outer, each })).toBeNull();
    expect(log).toEqual(['outer begins', 'outer 1', 'outer 2', 'outer ends', 'inner begins', 'inner 9', 'inner ends']);
  });

  it('go on after a session that throws, and after a beginning or an end that does', () => {
    const { log, walks, walkOf } = setup(new FakeClock());
    const broken = (): never => {
      throw new TypeError('out of the blue');
    };
    const walk = walkOf('loss', [1, 2]);
    const each = (session: number): void => {
      if (session === 1) broken();
      walk.each(session);
    };
    expect(walks.run({ ...walk, each })).toBeNull();
    expect(walks.run({ ...walkOf('none', [1]), begin: broken })).toBeNull();
    expect(walks.run({ ...walkOf('last', [1]), end: broken })).toBeNull();
    expect(log.filter((line) => !line.startsWith('internal error'))).toEqual([
      'loss begins',
      'loss 2',
      'loss ends',
      'none ends',
      'last begins',
      'last 1',
    ]);
    expect(log.filter((line) => line.startsWith('internal error'))).toHaveLength(3);
  });

  it('end where they are when all is closed', async () => {
    const clock = new SpentClock();
    const { log, walks, walkOf } = setup(clock);
    void walks.run(walkOf('loss', [1, 2]));
    void walks.run(walkOf('ready', [1]));
    walks.close();
    expect(walks.run(walkOf('late', [1]))).toBeNull();
    await clock.turn(3);
    expect(log).toEqual(['loss begins', 'loss 1']);
  });
});
