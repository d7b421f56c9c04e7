import { describe, expect, it } from 'vitest';
import { ConfigError, ResourceError } from '../../../src/errors.js';
import { WorkerKeeper } from '../../../src/serve/front/worker-keeper.js';
import type { WorkerProcessEvents } from '../../../src/serve/front/worker-process.js';
import { linkWorld, WORKER } from './link-world.js';

interface Launched {
  readonly events: WorkerProcessEvents;
  readonly told: string[];
}

function setup() {
  const { clock, link } = linkWorld();
  const launched: Launched[] = [];
  const warnings: string[] = [];
  const keeper = new WorkerKeeper({
    clock,
    link,
    launch: (events) => {
      const told: string[] = [];
      launched.push({ events, told });
      return {
        pid: launched.length,
        stop: (deadlineMs) => told.push(`stop ${deadlineMs}`),
        kill: () => told.push('kill'),
      };
    },
    onWarning: (message) => warnings.push(message),
  });
  const last = (): Launched => launched.at(-1) as Launched;
  const exit = (how = 'was ended by SIGKILL'): void => last().events.onExit({ how, isFinal: false, problems: null });
  return { clock, link, keeper, launched, warnings, last, exit };
}

describe('worker keeper', () => {
  it('starts a worker and tells the link where it is', async () => {
    const { keeper, link, last } = setup();
    const started = keeper.start();
    expect(link.condition().reason).toBe('it is being started');
    last().events.onReady(WORKER);
    await started;
    expect([link.endpoint, keeper.pid, keeper.starts]).toEqual([WORKER, 1, 1]);
  });

  it('starts another one after a pause that doubles, and begins anew after one that lived', async () => {
    const { clock, keeper, link, launched, last, exit, warnings } = setup();
    const started = keeper.start();
    last().events.onReady(WORKER);
    await started;
    for (const [pauseMs, count] of [
      [200, 1],
      [400, 2],
      [800, 3],
    ] as const) {
      exit();
      expect(link.condition().reason).toBe('its process was ended by SIGKILL');
      clock.advance(pauseMs - 1);
      expect(launched).toHaveLength(count);
      clock.advance(1);
      expect(launched).toHaveLength(count + 1);
    }
    for (let i = 0; i < 12; i++) {
      exit();
      clock.advance(15_000);
    }
    expect(launched).toHaveLength(16);
    last().events.onReady(WORKER);
    clock.advance(30_000);
    exit();
    clock.advance(200);
    expect(launched).toHaveLength(17);
    expect(warnings[1]).toBe('context-0 was ended by SIGKILL; another one starts in 400 ms');
  });

  it('gives up when the first one cannot start, and says why', async () => {
    const first = setup();
    const refused = first.keeper.start();
    const problems = [{ setting: 'engine.seed', message: 'must be a whole number' }];
    first.last().events.onExit({ how: 'engine.seed must be a whole number', isFinal: true, problems });
    await expect(refused).rejects.toThrow(ConfigError);
    await expect(refused).rejects.toThrow('context-0: engine.seed must be a whole number');
    await expect(refused).rejects.toMatchObject({ details: { problems } });
    const second = setup();
    const ended = second.keeper.start();
    second.exit('ended with code 1');
    await expect(ended).rejects.toThrow(ResourceError);
    second.clock.advance(60_000);
    expect(second.launched).toHaveLength(1);
  });

  it('ends one that is never ready', async () => {
    const { clock, keeper, last, warnings } = setup();
    void keeper.start().catch(() => {});
    clock.advance(60_000);
    expect(last().told).toEqual(['kill']);
    expect(warnings[0]).toMatch(/not ready within 60 s/);
  });

  it('stops while one runs, and starts no other', async () => {
    const { clock, keeper, launched, last, exit } = setup();
    void keeper.start();
    last().events.onReady(WORKER);
    let gone = false;
    void keeper.stop(500).then(() => {
      gone = true;
    });
    await clock.turn();
    expect([last().told, gone]).toEqual([['stop 500'], false]);
    exit('ended with code 0');
    await clock.turn();
    expect(gone).toBe(true);
    clock.advance(60_000);
    expect(launched).toHaveLength(1);
  });

  it('stops in a pause', async () => {
    const { clock, keeper, launched, last, exit } = setup();
    void keeper.start();
    last().events.onReady(WORKER);
    exit();
    await keeper.stop(500);
    clock.advance(60_000);
    expect(launched).toHaveLength(1);
  });

  it('a worker that cannot be launched counts as one that ended: another is tried, and nothing is thrown by a timer', async () => {
    const { clock, link } = linkWorld();
    const warnings: string[] = [];
    let launches = 0;
    let failing = false;
    let events: WorkerProcessEvents | null = null;
    const keeper = new WorkerKeeper({
      clock,
      link,
      launch: (told) => {
        launches += 1;
        if (failing) throw new Error('spawn EAGAIN');
        events = told;
        return { pid: launches, stop: () => {}, kill: () => {} };
      },
      onWarning: (message) => warnings.push(message),
    });
    const started = keeper.start();
    (events as WorkerProcessEvents | null)?.onReady(WORKER);
    await started;
    failing = true;
    (events as WorkerProcessEvents | null)?.onExit({ how: 'was ended by SIGKILL', isFinal: false, problems: null });
    clock.advance(200);
    expect([launches, keeper.pid]).toEqual([2, null]);
    expect(warnings.at(-1)).toBe('context-0 could not be started: spawn EAGAIN; another one starts in 400 ms');
    failing = false;
    clock.advance(400);
    expect([launches, keeper.pid]).toEqual([3, 3]);
    const stopped = keeper.stop(100);
    (events as WorkerProcessEvents | null)?.onExit({ how: 'ended', isFinal: false, problems: null });
    await stopped;
  });

  it('the first one that cannot be launched is told to whoever starts the server', async () => {
    const { clock, link } = linkWorld();
    const launch = (): never => {
      throw new Error('spawn EAGAIN');
    };
    const keeper = new WorkerKeeper({ clock, link, launch, onWarning: () => {} });
    await expect(keeper.start()).rejects.toThrow(ResourceError);
    await keeper.stop(100);
  });
});
