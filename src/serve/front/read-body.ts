import type { Readable } from 'node:stream';
import type { Clock } from '../../clock.js';
import type { BodyShare } from './body-budget.js';
import { BodyBytes, bodyTooLarge } from './body-bytes.js';
import { BodyFlow } from './body-flow.js';
import { BodyScan } from './body-scan.js';
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

/** A body that is still to be read, and what its request says of it. */
export interface UnreadBody {
  readonly headers: Headers;
  readonly stream: Readable;
}

/**
 * The JSON body of a request.
 * @param share grows with what is read; its owner ends it
 * @throws ApiError 415 for another type, 413 for one that is larger than the limit, 400 for what is no JSON or has too much in it or comes in
 *   too many pieces, 408 when nothing of it comes for too long, 429 when other bodies have all the room, 499 when its client left before it
 *   was whole
 */
export async function readJson(
  { headers, stream }: UnreadBody,
  limits: BodyLimits,
  share: BodyShare,
): Promise<unknown> {
  const { clock, sizeBytes: limitBytes } = limits;
  checkType(headers);
  // Node takes no more than was announced.
  const announced = Number(headers.get('content-length') ?? limitBytes);
  if (announced > limitBytes) throw bodyTooLarge(limitBytes);
  const body = new BodyBytes(Number.isSafeInteger(announced) ? announced : limitBytes, share);
  const scan = new BodyScan(clock, limits.maxValues);
  const flow = new BodyFlow(stream, clock, (piece) => {
    body.push(piece);
    scan.look(body.bytes);
  });
  await flow.whole();
  await scan.finish(body.bytes);
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(body.bytes);
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

function checkType(headers: Headers): void {
  const type = headers.get('content-type') ?? '';
  if (!/^application\/json\s*(?:;|$)/i.test(type))
    throw new ApiError(
      415,
      `content-type must be application/json, got ${type === '' ? 'none' : JSON.stringify(type.slice(0, 64))}`,
    );
  const charsets = [...type.matchAll(/;\s*charset\s*=([^;]*)/gi)].map(([, name = '']) =>
    name.trim().replaceAll('"', ''),
  );
  const other = charsets.find((name) => !/^utf-?8$/i.test(name));
  if (other !== undefined)
    throw new ApiError(
      415,
      `the charset of content-type must be utf-8, got ${JSON.stringify(other.slice(0, 64))}; JSON has no other`,
    );
  const encoding = headers.get('content-encoding');
  if (encoding !== null && encoding !== 'identity')
    throw new ApiError(415, 'content-encoding is not supported; send the body as it is');
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
