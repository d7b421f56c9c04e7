import { describe, expect, it } from 'vitest';
import { InternalError, ProtocolError } from '../../../src/errors.js';
import { CallbackGuard, INTERNAL_ERRORS } from '../../../src/session/callback-guard.js';
import { Counters } from '../../../src/session/counters.js';
import { GuardedClock } from '../../../src/session/guarded-clock.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';

function guarded(warn?: (message: string) => void) {
  const clock = new FakeClock();
  const counters = new Counters();
  const lines: string[] = [];
  const guard = new CallbackGuard({ clock, counters, warn: warn ?? ((message) => void lines.push(message)) });
  return { clock, lines, guard, errors: () => counters.get(INTERNAL_ERRORS) };
}

function fails(cause: unknown): () => never {
  return () => {
    throw cause;
  };
}

describe('the guard of callbacks', () => {
  it('says what went wrong, counts it and logs it', () => {
    const { guard, lines, errors } = guarded();
    expect(guard.run('a timer', () => {})).toBeNull();
    const error = guard.run('a timer', fails(new TypeError('out of the blue')));
    expect(error).toBeInstanceOf(InternalError);
    expect(error?.message).toBe('a timer: out of the blue');
    expect(errors()).toBe(1);
    expect(lines[0]).toMatch(/^internal error, a timer: out of the blue\nTypeError/);
  });

  it('an error of ours without a request to end is counted all the same, and passes as it is', () => {
    const { guard, errors } = guarded();
    const ours = new ProtocolError('no');
    expect(guard.run('a timer', fails(ours))).toBe(ours);
    expect(errors()).toBe(1);
  });

  it('ends the request that it was about; one that says what is wrong with that is no trouble of ours', () => {
    const { guard, errors } = guarded();
    const ends: string[] = [];
    guard.runFor({ rid: 7n }, fails(new ProtocolError('no')), (_, { code, message }) =>
      ends.push(`${code} ${message}`),
    );
    expect(errors()).toBe(0);
    guard.runFor({ rid: 7n }, fails(new Error('oh')), (_, { code, message }) => ends.push(`${code} ${message}`));
    guard.runFor({ rid: 7n }, fails(new Error('oh')), fails(new Error('and again')));
    expect(ends).toEqual(['ERR_KVT_PROTOCOL no', 'ERR_KVT_INTERNAL request 7: oh']);
    expect(errors()).toBe(3);
  });

  it('takes whatever is thrown, also by the log', () => {
    const { guard, errors } = guarded(fails(new Error('the disk is full')));
    const shy = { toString: fails(new Error('never')) };
    for (const cause of [undefined, null, 'text', 5, shy, Object.create(null)])
      expect(guard.run('it', fails(cause))).toBeInstanceOf(InternalError);
    expect(errors()).toBe(6);
  });

  it('takes what a promise is rejected with, and what its follower throws', async () => {
    const { guard, errors } = guarded();
    const seen: number[] = [];
    guard.after('it', Promise.resolve(1), (value) => seen.push(value));
    guard.after('it', Promise.resolve(2), fails(new Error('no')));
    guard.after('it', Promise.reject(new Error('no')), () => seen.push(3));
    await new Promise((resolve) => setImmediate(resolve));
    expect(seen).toEqual([1]);
    expect(errors()).toBe(2);
  });

  it('stands before the timers of its clock', () => {
    const { clock, guard, errors } = guarded();
    const own = new GuardedClock(clock, guard);
    const fired: string[] = [];
    own.setTimer(5, fails(new Error('no')));
    own.setTimer(5, () => fired.push('next'));
    own.setTimer(5, () => fired.push('cancelled')).cancel();
    clock.advance(5);
    expect(own.now()).toBe(clock.now());
    expect(fired).toEqual(['next']);
    expect(errors()).toBe(1);
  });
});
