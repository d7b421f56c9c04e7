import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { NoteWatch } from '../../../src/agent/note-watch.js';

describe('the watch for notes', () => {
  let nowMs: number;
  let watch: NoteWatch;

  beforeEach(() => {
    nowMs = 1000;
    watch = new NoteWatch();
    vi.spyOn(performance, 'now').mockImplementation(() => nowMs);
  });

  afterEach(async () => {
    nowMs += 1000;
    await nextTurn();
    await nextTurn();
    vi.restoreAllMocks();
  });

  it('turns until each expected note is here', async () => {
    expect(watch.isTurning).toBe(false);
    watch.begin();
    watch.begin();
    await nextTurn();
    watch.end();
    await nextTurn();
    expect(watch.isTurning).toBe(true);
    watch.end();
    expect(watch.isTurning).toBe(false);
    watch.end();
    watch.begin();
    expect(watch.isTurning).toBe(true);
  });

  it('turns for 2 ms from the first, however many are announced meanwhile', async () => {
    watch.begin();
    nowMs += 1.5;
    watch.begin();
    await nextTurn();
    await nextTurn();
    expect(watch.isTurning).toBe(true);
    nowMs += 0.5;
    await nextTurn();
    await nextTurn();
    expect(watch.isTurning).toBe(false);
    watch.begin();
    nowMs += 1.9;
    await nextTurn();
    expect(watch.isTurning).toBe(true);
  });

  it('costs no turn when nothing is expected', async () => {
    const asked = vi.mocked(performance.now);
    watch.begin();
    watch.end();
    await nextTurn();
    await nextTurn();
    const before = asked.mock.calls.length;
    for (let turn = 0; turn < 5; turn++) await nextTurn();
    expect(asked.mock.calls.length).toBe(before);
  });
});
