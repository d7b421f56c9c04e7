import { describe, expect, it } from 'vitest';
import { InternalError } from '../../../src/errors.js';
import { createRequest } from '../../../src/executor/create-request.js';
import type { RequestState } from '../../../src/executor/request.js';
import {
  initialState,
  isTerminal,
  REQUEST_TRANSITIONS,
  type RequestEvent,
  roleOf,
} from '../../../src/executor/request-states.js';
import { params, prompt } from './harness.js';

/** The type asks for every one. */
const EVENT_SET: Readonly<Record<RequestEvent, true>> = {
  receivers_ready: true,
  last_slice_sent: true,
  prompt_enqueued: true,
  receive_posted: true,
  transfer_completed: true,
  decode_started: true,
  finished: true,
  context_cancelled: true,
  generation_cancelled: true,
  failed: true,
};
const EVENTS = Object.keys(EVENT_SET) as RequestEvent[];

/** Every legal pair; all others must be refused. */
const LEGAL: Record<string, RequestState> = {
  'DISAGG_CONTEXT_WAIT_SCHEDULER receivers_ready': 'CONTEXT_INIT',
  'DISAGG_CONTEXT_WAIT_SCHEDULER context_cancelled': 'DISAGG_CONTEXT_COMPLETE',
  'DISAGG_CONTEXT_WAIT_SCHEDULER failed': 'DISAGG_TRANS_ERROR',
  'CONTEXT_INIT last_slice_sent': 'DISAGG_CONTEXT_TRANS_IN_PROGRESS',
  'CONTEXT_INIT prompt_enqueued': 'GENERATION_IN_PROGRESS',
  'CONTEXT_INIT context_cancelled': 'DISAGG_CONTEXT_COMPLETE',
  'CONTEXT_INIT generation_cancelled': 'GENERATION_COMPLETE',
  'CONTEXT_INIT failed': 'DISAGG_TRANS_ERROR',
  'DISAGG_CONTEXT_TRANS_IN_PROGRESS transfer_completed': 'DISAGG_CONTEXT_COMPLETE',
  'DISAGG_CONTEXT_TRANS_IN_PROGRESS context_cancelled': 'DISAGG_CONTEXT_COMPLETE',
  'DISAGG_CONTEXT_TRANS_IN_PROGRESS failed': 'DISAGG_TRANS_ERROR',
  'DISAGG_GENERATION_INIT receive_posted': 'DISAGG_GENERATION_TRANS_IN_PROGRESS',
  'DISAGG_GENERATION_INIT generation_cancelled': 'GENERATION_COMPLETE',
  'DISAGG_GENERATION_INIT failed': 'DISAGG_TRANS_ERROR',
  'DISAGG_GENERATION_TRANS_IN_PROGRESS transfer_completed': 'DISAGG_GENERATION_TRANS_COMPLETE',
  'DISAGG_GENERATION_TRANS_IN_PROGRESS generation_cancelled': 'GENERATION_COMPLETE',
  'DISAGG_GENERATION_TRANS_IN_PROGRESS failed': 'DISAGG_TRANS_ERROR',
  'DISAGG_GENERATION_TRANS_COMPLETE decode_started': 'GENERATION_IN_PROGRESS',
  'DISAGG_GENERATION_TRANS_COMPLETE generation_cancelled': 'GENERATION_COMPLETE',
  'DISAGG_GENERATION_TRANS_COMPLETE failed': 'DISAGG_TRANS_ERROR',
  'GENERATION_IN_PROGRESS finished': 'GENERATION_COMPLETE',
  'GENERATION_IN_PROGRESS generation_cancelled': 'GENERATION_COMPLETE',
  'GENERATION_IN_PROGRESS failed': 'DISAGG_TRANS_ERROR',
};

const STATES = Object.keys(REQUEST_TRANSITIONS.transitions) as RequestState[];

describe('request transitions', () => {
  it('covers ten states', () => {
    expect(STATES.length).toBe(10);
  });

  for (const state of STATES) {
    for (const event of EVENTS) {
      const next = LEGAL[`${state} ${event}`];
      it(`${state} on ${event}: ${next ?? 'illegal'}`, () => {
        if (next === undefined) expect(() => REQUEST_TRANSITIONS.next(state, event)).toThrow(InternalError);
        else expect(REQUEST_TRANSITIONS.next(state, event)).toBe(next);
      });
    }
  }

  it('ends in three states, and only those have no way out', () => {
    for (const state of STATES) {
      expect(isTerminal(state)).toBe(EVENTS.every((event) => LEGAL[`${state} ${event}`] === undefined));
    }
  });
});

describe('where a request starts', () => {
  const spec = { id: 1, promptTokens: prompt(4), maxTokens: 1 };
  it.each([
    [null, 'CONTEXT_INIT', 'aggregate'],
    [params('context_and_generation'), 'CONTEXT_INIT', 'aggregate'],
    [params('context_only'), 'DISAGG_CONTEXT_WAIT_SCHEDULER', 'context'],
    [params('context_only', { scheduleStyle: 'context_first' }), 'CONTEXT_INIT', 'context'],
    [params('generation_only'), 'DISAGG_GENERATION_INIT', 'generation'],
    [params('generation_only', { scheduleStyle: 'context_first' }), 'DISAGG_GENERATION_INIT', 'generation'],
  ] as const)('%o', (disagg, state, role) => {
    const request = createRequest({ ...spec, disagg });
    expect(request.state).toBe(state);
    expect(initialState(request)).toBe(state);
    expect(roleOf(request)).toBe(role);
  });
});
