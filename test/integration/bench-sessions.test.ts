import { describe, expect, it } from 'vitest';
import type { BenchOutput } from '../../src/cli/bench/output-contract.js';
import type { SessionsRow } from '../../src/cli/bench/sessions/measure-rows.js';
import { checksOf } from '../../src/cli/bench/sessions/sessions-command.js';
import { runCli } from '../support/cli.js';

const ROW: SessionsRow = {
  variant: 'sessions',
  sessions: 10,
  requests: 100,
  requestsPerSecond: 100,
  failed: 0,
  lost: 0,
  loopDelayMs: { p50: 0, p90: 0, p99: 5, max: 9 },
  turns: {
    wallMs: { min: 0, p50: 1, p90: 2, p99: 9, max: 20 },
    cpuMs: { min: 0, p50: 1, p90: 2, p99: 5, max: 9 },
    waitedForCoreShare: 0.1,
    longestOwnMs: 5,
    garbageCollection: { count: 3, totalMs: 9, maxMs: 5, share: 0.01 },
  },
  heapBytesPerSession: 4096,
  cpuShare: 0.5,
};

describe('bench sessions', () => {
  it('ends every request it starts, and says so in the report', async () => {
    const words = ['--sessions', '1,40', '--rate', '50', '--concurrency', '8', '--seconds', '1', '--json', '-'];
    const { code, stdout, stderr } = await runCli(['bench', 'sessions', ...words]);
    expect(code, stderr).toBe(0);
    const output = JSON.parse(stdout) as BenchOutput<SessionsRow>;
    expect(output).toMatchObject({ schema: 1, bench: 'sessions', settings: { sessions: [1, 40] }, interrupted: false });
    expect(output.results.map(({ variant, sessions, failed, lost }) => [variant, sessions, failed, lost])).toEqual([
      ['nothing', 0, 0, 0],
      ['sessions', 1, 0, 0],
      ['sessions', 40, 0, 0],
      ['executor', 8, 0, 0],
      ['executor-overlap', 8, 0, 0],
    ]);
    for (const { variant, requests, turns } of output.results) {
      if (variant !== 'nothing') expect(requests).toBeGreaterThan(0);
      expect(turns.wallMs?.max).toBeGreaterThan(0);
      // Nobody has more of one core than there was.
      if (turns.cpuMs !== null) expect(turns.cpuMs.max).toBeLessThanOrEqual(turns.wallMs?.max as number);
    }
    expect(output.checks.filter(({ judged }) => judged).every(({ met }) => met)).toBe(true);
    expect(stderr).toMatch(/^executor +8 /m);
    expect(stderr).toMatch(/^executor-overlap +8 /m);
  });

  it('judges lost and failed requests always, figures only when asked to', () => {
    const failing = (row: SessionsRow, judge: boolean, standstillMs = 0): readonly string[] =>
      checksOf(row, standstillMs, judge).flatMap(({ name, met, judged }) => (judged && !met ? [name] : []));
    expect(failing(ROW, true)).toEqual([]);
    expect(failing({ ...ROW, lost: 1 }, false)).toEqual(['lostRequests']);
    expect(failing({ ...ROW, failed: 1 }, false)).toEqual(['failedRequests']);
    const slow = { ...ROW, loopDelayMs: { ...ROW.loopDelayMs, p99: 5.1 }, heapBytesPerSession: 4097 };
    expect(failing(slow, false)).toEqual([]);
    expect(failing(slow, true)).toEqual(['loopDelayP99Ms', 'heapBytesPerSession']);
    const held: SessionsRow = { ...ROW, turns: { ...ROW.turns, cpuMs: { min: 0, p50: 1, p90: 2, p99: 5.1, max: 9 } } };
    expect(failing(held, true)).toEqual(['turnCpuP99Ms']);
    const long = { ...ROW, turns: { ...ROW.turns, longestOwnMs: 5.1 } };
    expect(failing(long, true)).toEqual(['longestOwnTurnMs']);
    expect(failing(long, true, 5)).toEqual(['longestOwnTurnMs']);
    // The machine itself stands still for longer.
    expect(failing(long, true, 5.1)).toEqual([]);
    expect(failing({ ...long, lost: 1 }, true, 5.1)).toEqual(['lostRequests']);
    expect(checksOf({ ...ROW, variant: 'nothing' }, 5.1, true)).toEqual([]);
    expect(failing({ ...ROW, turns: { ...ROW.turns, cpuMs: null, waitedForCoreShare: null } }, true)).toEqual([]);
    const executor: SessionsRow = { ...ROW, variant: 'executor', requestsPerSecond: 1999, heapBytesPerSession: null };
    expect(failing(executor, true)).toEqual(['requestsPerSecond']);
  });

  it('refuses bad arguments before it starts anything', async () => {
    const { code, stderr } = await runCli(['bench', 'sessions', '--sessions', '0']);
    expect(code).toBe(2);
    expect(stderr).toContain('--sessions');
  });
});
