import { closeSync, openSync, readSync } from 'node:fs';

const BUFFER_BYTES = 1 << 20;
/** A line of a text file; a longer one is no text. */
export const MOST_LINE_BYTES = 1 << 24;

/** A line that does not end. */
export class LineTooLongError extends RangeError {
  readonly line: number;

  constructor(line: number) {
    super(`line ${line} is longer than ${MOST_LINE_BYTES} bytes`);
    this.line = line;
  }
}

/**
 * The lines of a file, read only as far as they are asked for: of a file of many gigabytes the first thousand cost no more.
 * @throws the file system's error, and LineTooLongError
 */
export function* firstLines(file: string): Iterable<string> {
  const handle = openSync(file, 'r');
  try {
    const buffer = Buffer.alloc(BUFFER_BYTES);
    let rest: Buffer<ArrayBufferLike> = Buffer.alloc(0);
    let line = 0;
    for (;;) {
      const length = readSync(handle, buffer, 0, buffer.length, null);
      if (length === 0) break;
      const data = Buffer.concat([rest, buffer.subarray(0, length)]);
      let begin = 0;
      for (let end = data.indexOf(0x0a); end !== -1; end = data.indexOf(0x0a, begin)) {
        line++;
        yield data.toString('utf8', begin, end);
        begin = end + 1;
      }
      rest = data.subarray(begin);
      if (rest.length > MOST_LINE_BYTES) throw new LineTooLongError(line + 1);
    }
    if (rest.length > 0) yield rest.toString('utf8');
  } finally {
    closeSync(handle);
  }
}
