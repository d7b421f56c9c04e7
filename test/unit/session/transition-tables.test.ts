import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { InternalError } from '../../../src/errors.js';
import { RX_TRANSITIONS } from '../../../src/session/rx-session.js';
import { SEND_TASK_TRANSITIONS } from '../../../src/session/send-task.js';
import { HOLD_TRANSITIONS } from '../../../src/session/transfer-ledger.js';
import type { TransitionTable } from '../../../src/session/transition-table.js';
import { NOTE_TRANSITIONS, TX_TRANSITIONS } from '../../../src/session/tx-session.js';

/**
 * @param events every event there is: the type asks for those that are illegal everywhere too
 * @param legal every legal pair, written out: what is not here must be refused
 */
function expected<State extends string, Event extends string>(
  table: TransitionTable<State, Event>,
  events: Readonly<Record<Event, true>>,
  legal: readonly string[],
) {
  return { table: table as TransitionTable<string, string>, events: Object.keys(events), legal };
}

const EXPECTED = [
  expected(HOLD_TRANSITIONS, { complete: true, settle: true }, [
    'held complete completing',
    'held settle settled',
    'completing settle settled',
  ]),
  expected(SEND_TASK_TRANSITIONS, { submit: true, complete: true, fail: true, cancel: true }, [
    'queued submit waiting',
    'queued complete transferred',
    'queued fail failed',
    'queued cancel cancelled',
    'waiting complete transferred',
    'waiting fail failed',
    'waiting cancel cancelled',
  ]),
  expected(NOTE_TRANSITIONS, { arm: true, send: true, drop: true }, [
    'none arm armed',
    'armed send sent',
    'armed drop dropped',
  ]),
  expected(TX_TRANSITIONS, { slice: true, lastSlice: true, fail: true, cancel: true, drained: true }, [
    'created slice active',
    'created lastSlice draining',
    'created fail draining',
    'created cancel draining',
    'active slice active',
    'active lastSlice draining',
    'active fail draining',
    'active cancel draining',
    'draining fail draining',
    'draining cancel draining',
    'draining drained closed',
  ]),
  expected(RX_TRANSITIONS, { request: true, accept: true, complete: true, fail: true, cancel: true, release: true }, [
    'created request requested',
    'created fail failed',
    'created cancel cancelled',
    'requested request requested',
    'requested accept receiving',
    'requested complete completed',
    'requested fail failed',
    'requested cancel cancelled',
    'receiving request receiving',
    'receiving accept receiving',
    'receiving complete completed',
    'receiving fail failed',
    'receiving cancel cancelled',
    'completed release released',
    'failed release released',
    'cancelled release released',
  ]),
];

/** Tables whose walk lies beside other tests of theirs. */
const ELSEWHERE = ['executor/request-states.ts'];

function sourcesWithTables(): string[] {
  const root = 'src';
  return readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts') && readFileSync(join(root, path), 'utf8').includes('new TransitionTable'))
    .sort();
}

describe('transition tables', () => {
  for (const { table, events, legal } of EXPECTED) {
    it(`${table.name}: every (state, event)`, () => {
      const states = Object.keys(table.transitions);
      const found: string[] = [];
      for (const state of states)
        for (const event of events) {
          if (table.allows(state, event)) found.push(`${state} ${event} ${table.next(state, event)}`);
          else expect(() => table.next(state, event)).toThrow(InternalError);
        }
      expect(found.sort()).toEqual([...legal].sort());
      const named = states.flatMap((state) => Object.keys(table.transitions[state] ?? {}));
      expect([...new Set(named)].filter((event) => !events.includes(event))).toEqual([]);
    });
  }

  it('there is no table that is not walked', () => {
    const walked = ['rx-session', 'send-task', 'transfer-ledger', 'tx-session'].map((name) => `session/${name}.ts`);
    const tables = walked.map((path) => readFileSync(join('src', path), 'utf8').match(/= new TransitionTable/g) ?? []);
    expect(tables.flat()).toHaveLength(EXPECTED.length);
    expect(sourcesWithTables()).toEqual([...ELSEWHERE, ...walked].sort());
  });
});
