import type { Clock } from '../../clock.js';
import type { BodyShare } from './body-budget.js';
import { JsonScan } from './json-scan.js';
import { ApiError, badRequest } from './openai-error.js';

export interface BodyLimits {
  readonly clock: Clock;
  readonly sizeBytes: number;
  /** Entries of all lists and maps together. */
  readonly maxValues: number;
}

/** Bytes of room for parameters, and of one token as it may be written: an escaped character, a long word, an id and its comma. */
const BODY_BASE_BYTES = 64 * 1024;
const TOKEN_BYTES = 32;
/** Beside the ids of a prompt: parameters, messages and their parts. */
const OTHER_VALUES = 32 * 1024;

/** Default size of a body: what a model of that many tokens can use. */
export function bodyBytesFor(maxModelTokens: number): number {
  return BODY_BASE_BYTES + maxModelTokens * TOKEN_BYTES;
}

export function bodyValuesFor(maxModelTokens: number): number {
  return OTHER_VALUES + maxModelTokens;
}

/** Longest pause within a body: what is held for it is held from others. */
export const BODY_STALL_MS = 5000;
/** Bytes that are looked at in one turn of the event loop. */
const TURN_BYTES = 128 * 1024;

/**
 * The JSON body of a request.
 * @param share grows with what is read; its owner ends it
 * @throws ApiError 415 for another type, 413 for one that is larger than the limit, 400 for what is no JSON or has too much in it,
 *   408 when nothing of it comes for too long, 429 when other bodies have all the room, 499 when its client left before it was whole
 */
export async function readJson(request: Request, limits: BodyLimits, share: BodyShare): Promise<unknown> {
  const { clock, sizeBytes: limitBytes } = limits;
  const type = request.headers.get('content-type') ?? '';
  if (!/^application\/json\s*(?:;|$)/i.test(type))
    throw new ApiError(
      415,
      `content-type must be application/json, got ${type === '' ? 'none' : JSON.stringify(type.slice(0, 64))}`,
    );
  const encoding = request.headers.get('content-encoding');
  if (encoding !== null && encoding !== 'identity')
    throw new ApiError(415, 'content-encoding is not supported; send the body as it is');
  const tooLarge = (): ApiError =>
    new ApiError(413, `the body is larger than ${limitBytes} bytes (--max-body)`, { code: 'body_too_large' });
  if (Number(request.headers.get('content-length') ?? 0) > limitBytes) throw tooLarge();
  const chunks: Uint8Array[] = [];
  const scan = new JsonScan(limits.maxValues);
  let sizeBytes = 0;
  let inTurnBytes = 0;
  try {
    for await (const chunk of chunksOf(request, clock)) {
      sizeBytes += chunk.length;
      if (sizeBytes > limitBytes) throw tooLarge();
      share.grow(chunk.length);
      scan.push(chunk);
      chunks.push(chunk);
      inTurnBytes += chunk.length;
      if (inTurnBytes < TURN_BYTES) continue;
      inTurnBytes = 0;
      await clock.nextTurn();
    }
  } catch (error) {
    if (error instanceof ApiError) throw error;
    // The connection broke, or was cut off for its slowness: nobody's bug, and no news for a log.
    throw new ApiError(499, 'the client is gone');
  }
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(Buffer.concat(chunks));
  } catch {
    // The bytes are the client's; saying which one is wrong would help nobody.
    throw badRequest('the body is not UTF-8');
  }
  if (text.trim() === '') throw badRequest('the body is empty; it must be a JSON object');
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw badRequest(`the body is not JSON: ${whyNot(error, text)}`);
  }
}

async function* chunksOf(request: Request, clock: Clock): AsyncGenerator<Uint8Array> {
  if (request.body === null) return;
  const reader = (request.body as ReadableStream<Uint8Array>).getReader();
  let isWhole = false;
  try {
    for (;;) {
      const { value, done } = await inTime(reader.read(), clock);
      if (done) break;
      for (let at = 0; at < value.length; at += TURN_BYTES) yield value.subarray(at, at + TURN_BYTES);
    }
    isWhole = true;
  } finally {
    // Whatever else comes is nobody's; that it cannot be cancelled, because the connection broke, is no news.
    if (!isWhole) void reader.cancel().catch(() => {});
  }
}

function inTime<T>(read: Promise<T>, clock: Clock): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.setTimer(BODY_STALL_MS, () =>
      reject(new ApiError(408, `nothing of the body came for ${BODY_STALL_MS} ms`)),
    );
    read.then(resolve, reject).finally(() => timer.cancel());
  });
}

/** The parser's words name a place or a character; what it quotes of the body the client has. */
function whyNot(error: unknown, text: string): string {
  const { message } = error as Error;
  const character = /^Unexpected token '(.+?)', /su.exec(message)?.[1];
  const position = /at position (\d+)/.exec(message)?.[1];
  if (/end of JSON input|Unterminated/.test(message) || Number(position) === text.length)
    return `it ends too early, after ${text.length} characters`;
  const where = position === undefined ? '' : ` at character ${Number(position) + 1}`;
  return character === undefined ? `it cannot be read${where}` : `${JSON.stringify(character)} is not expected${where}`;
}
