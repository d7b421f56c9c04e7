import { MAX_NAME_BYTES } from './limits.js';

/** What would make one line of a log look like two, or move a terminal's cursor. */
const UNPRINTABLE = /[\p{Cc}\p{Zl}\p{Zp}]/u;

/** Why peers would refuse a rank that publishes this name: it stands in most of what they write about it. Null: they would not. */
export function instanceNameProblem(name: string): string | null {
  if (Buffer.byteLength(name) > MAX_NAME_BYTES) return `has more than ${MAX_NAME_BYTES} bytes`;
  return UNPRINTABLE.test(name) ? 'has control characters or line breaks' : null;
}
