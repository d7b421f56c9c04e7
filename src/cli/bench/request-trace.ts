import { readFileSync } from 'node:fs';
import { UsageError } from '../usage-error.js';

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
 * @throws UsageError for a file that cannot be read, and for the first broken line with `file:line`
 */
export function readTrace(file: string, limit: number): readonly TraceRequest[] {
  let content: string;
  try {
    content = readFileSync(file, 'utf8');
  } catch (error) {
    const reason =
      (error as NodeJS.ErrnoException).code === 'ENOENT'
        ? 'does not exist'
        : `cannot be read (${String((error as Error).message)})`;
    throw new UsageError(`--trace: ${file} ${reason}; give the path of a request trace`);
  }
  const requests: TraceRequest[] = [];
  for (const [index, line] of content.split('\n').entries()) {
    if (requests.length === limit) break;
    if (line.trim() !== '') requests.push(readLine(`${file}:${index + 1}`, line));
  }
  if (requests.length === 0) throw new UsageError(`--trace: ${file} holds no request`);
  return requests.sort((a, b) => a.timestampMs - b.timestampMs);
}
