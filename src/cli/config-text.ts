import { createReadStream } from 'node:fs';
import { UsageError } from './usage-error.js';

/** A configuration is a few KiB. A device or a pipe may have no end. */
const MAX_BYTES = 4 * 1024 * 1024;

/** @throws UsageError for what cannot be read, has no end or is no text */
export async function readConfigText(file: string): Promise<string> {
  const chunks: Uint8Array[] = [];
  let sizeBytes = 0;
  try {
    for await (const chunk of createReadStream(file) as AsyncIterable<Uint8Array>) {
      sizeBytes += chunk.length;
      if (sizeBytes > MAX_BYTES)
        throw new UsageError(`--config: ${file} has more than ${MAX_BYTES} bytes; is it the right file?`);
      chunks.push(chunk);
    }
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`--config: cannot read ${file} (${reasonOf(error)}); name a YAML file, see docs/examples`);
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks));
  } catch {
    // Which byte it is would help nobody.
    throw new UsageError(`--config: ${file} is not text in UTF-8; save it as such, or name another file`);
  }
}

function reasonOf(error: unknown): string {
  switch ((error as NodeJS.ErrnoException).code) {
    case 'ENOENT':
      return 'there is no such file';
    case 'EISDIR':
      return 'it is a folder';
    case 'EACCES':
    case 'EPERM':
      return 'this user may not read it';
    default:
      return (error as NodeJS.ErrnoException).code ?? 'it cannot be opened';
  }
}
