import { UsageError } from '../usage-error.js';
import { firstLines, LineTooLongError } from './first-lines.js';

/** Tokens that one entry of `hashIds` stands for. */
export const TRACE_BLOCK_TOKENS = 512;

/** One request of a trace: equal `hashIds` at equal places stand for equal prompt content. */
export interface TraceRequest {
  readonly timestampMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly hashIds: readonly number[];
}

function isCount(value: unknown, minimum: number): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= minimum;
}

function readLine(where: string, line: string): TraceRequest {
  const fail = (reason: string): never => {
    throw new UsageError(`--trace: ${where}: ${reason}; each line is one JSON object of a Mooncake request trace`);
  };
  let parsed: unknown;
  try {
    parsed = JSON.parse(line);
  } catch {
    return fail('not JSON');
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return fail('not a JSON object');
  const { timestamp, input_length, output_length, hash_ids } = parsed as Record<string, unknown>;
  if (typeof timestamp !== 'number' || !Number.isFinite(timestamp) || timestamp < 0) {
    return fail('timestamp is not a number of milliseconds');
  }
  if (!isCount(input_length, 1)) return fail('input_length is not a whole number of at least 1');
  if (!isCount(output_length, 0)) return fail('output_length is not a whole number');
  if (!Array.isArray(hash_ids) || !hash_ids.every((id) => isCount(id, 0))) {
    return fail('hash_ids is not a list of whole numbers');
  }
  const blocks = Math.ceil(input_length / TRACE_BLOCK_TOKENS);
  if (hash_ids.length !== blocks) {
    return fail(
      `${hash_ids.length} hash_ids for ${input_length} tokens, expected ${blocks} of ${TRACE_BLOCK_TOKENS} each`,
    );
  }
  return { timestampMs: timestamp, inputTokens: input_length, outputTokens: output_length, hashIds: hash_ids };
}

/**
 * The first `limit` requests of a trace file (JSON lines), in order of arrival.
 * Requests of one moment keep the file's order.
 * @throws UsageError for a file that cannot be read, and for the first broken line with `file:line`
 */
export function readTrace(file: string, limit: number): readonly TraceRequest[] {
  const requests: TraceRequest[] = [];
  let index = 0;
  try {
    for (const line of firstLines(file)) {
      index++;
      if (line.trim() !== '') requests.push(readLine(`${file}:${index}`, line));
      if (requests.length === limit) break;
    }
  } catch (error) {
    if (error instanceof UsageError) throw error;
    throw new UsageError(`--trace: ${file}${whyUnreadable(error)}; give the path of a request trace`);
  }
  if (requests.length === 0) throw new UsageError(`--trace: ${file} holds no request`);
  return requests.sort((a, b) => a.timestampMs - b.timestampMs);
}

function whyUnreadable(error: unknown): string {
  if (error instanceof LineTooLongError) return `:${error.line}: ${error.message}`;
  if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ' does not exist';
  return ` cannot be read (${(error as Error).message})`;
}
