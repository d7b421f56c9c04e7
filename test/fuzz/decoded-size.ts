/** About what a decoded value holds in memory, in bytes. Each object, entry and text is counted with its overhead. */
export function decodedSizeBytes(value: unknown): number {
  switch (typeof value) {
    case 'string':
      return 24 + 2 * value.length;
    case 'bigint':
      return 24;
    case 'object':
      break;
    default:
      return 8;
  }
  if (value === null) return 8;
  // What it keeps alive, not what it shows: a view of a large frame would keep all of it.
  if (ArrayBuffer.isView(value)) return 96 + value.buffer.byteLength;
  let size = 32;
  for (const key in value) size += 8 + decodedSizeBytes((value as Record<string, unknown>)[key]);
  return size;
}
