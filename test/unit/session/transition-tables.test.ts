import { describe, expect, it } from 'vitest';
import { InternalError } from '../../../src/errors.js';
import { RX_TRANSITIONS } from '../../../src/session/rx-session.js';
import { SEND_TASK_TRANSITIONS } from '../../../src/session/send-task.js';
import { HOLD_TRANSITIONS } from '../../../src/session/transfer-ledger.js';
import type { TransitionTable } from '../../../src/session/transition-table.js';
import { NOTE_TRANSITIONS, TX_TRANSITIONS } from '../../../src/session/tx-session.js';

/** Every legal pair, written out: what is not here must be refused. */
const EXPECTED: readonly {
  readonly table: TransitionTable<string, string>;
  readonly events: readonly string[];
  readonly legal: readonly string[];
}[] = [
  {
    table: HOLD_TRANSITIONS,
    events: ['complete', 'settle'],
    legal: ['held complete completing', 'held settle settled', 'completing settle settled'],
  },
  {
    table: SEND_TASK_TRANSITIONS,
    events: ['submit', 'complete', 'fail', 'cancel'],
    legal: [
      'queued submit waiting',
      'queued complete transferred',
      'queued fail failed',
      'queued cancel cancelled',
      'waiting complete transferred',
      'waiting fail failed',
      'waiting cancel cancelled',
    ],
  },
  {
    table: NOTE_TRANSITIONS,
    events: ['arm', 'send', 'drop'],
    legal: ['none arm armed', 'armed send sent', 'armed drop dropped'],
  },
  {
    table: TX_TRANSITIONS,
    events: ['slice', 'lastSlice', 'fail', 'cancel', 'drained'],
    legal: [
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
    ],
  },
  {
    table: RX_TRANSITIONS,
    events: ['request', 'accept', 'complete', 'fail', 'cancel', 'release'],
    legal: [
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
    ],
  },
];

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
});
