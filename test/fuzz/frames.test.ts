import { expect, it } from 'vitest';
import { garbageCollector } from './collect-garbage.js';
import { fuzzFrames } from './fuzz-frames.js';

const FRAMES = 1_000_000;

it('a million mutated frames: frames or counted refusals, reads and memory in proportion, a flat heap', () => {
  const { frames, decoded, refused, compatibilityChecks } = fuzzFrames({
    frames: FRAMES,
    seed: 1,
    collectGarbage: garbageCollector(),
    nowMs: () => performance.now(),
  });
  // The rules are checked inside; this is that the fuzzer still reaches what it is for.
  expect(frames).toBe(FRAMES);
  expect(decoded).toBeGreaterThan(FRAMES / 20);
  expect(compatibilityChecks).toBeGreaterThan(FRAMES / 1000);
  const { 'frame-too-large': _, ...reachable } = refused;
  for (const [reason, count] of Object.entries(reachable)) expect(count, reason).toBeGreaterThan(100);
}, 600_000);
