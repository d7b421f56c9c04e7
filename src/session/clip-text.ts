/** Room for text in a control frame, in bytes of UTF-8. */
const MAX_TEXT_BYTES = 2048;

/** Text as a frame can carry it: error texts quote other texts and have no bound of their own. */
export function clipText(text: string, maxBytes = MAX_TEXT_BYTES): string {
  // Of a UTF-16 unit come three bytes at most.
  if (text.length * 3 <= maxBytes) return text;
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= maxBytes) return text;
  // A cut inside a character decodes to U+FFFD, three bytes: leave room for it and the ellipsis.
  return `${new TextDecoder().decode(bytes.subarray(0, maxBytes - 8)).replace(/\uFFFD+$/, '')}…`;
}
