import { describe, expect, it } from 'vitest';
import { clipText } from '../../../src/session/clip-text.js';

const bytesOf = (text: string): number => new TextEncoder().encode(text).length;

describe('clipText', () => {
  it.each([
    ['of one byte a character', 'x', 30],
    ['of three bytes a character', '€', 10],
    ['of four', '😀', 7],
  ])('keeps a text %s that fits', (_, character, count) => {
    const text = character.repeat(count);
    expect(clipText(text, 30)).toBe(text);
  });

  it.each([
    ['of one byte a character', 'x', 31, 22],
    // Fewer characters than there is room for bytes.
    ['of three bytes a character', '€', 11, 7],
    ['of four', '😀', 8, 5],
  ])('cuts a text %s between characters, and says so', (_, character, count, kept) => {
    const clipped = clipText(character.repeat(count), 30);
    expect(clipped).toBe(`${character.repeat(kept)}…`);
    expect(bytesOf(clipped)).toBeLessThanOrEqual(30);
  });
});
