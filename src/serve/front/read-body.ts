import { ApiError, badRequest } from './openai-error.js';

/**
 * The JSON body of a request.
 * @throws ApiError 415 for another type, 413 for one that is larger than `limitBytes`, 400 for what is no JSON,
 *   499 when its client left before it was whole
 */
export async function readJson(request: Request, limitBytes: number): Promise<unknown> {
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
  let sizeBytes = 0;
  try {
    if (request.body !== null)
      for await (const chunk of request.body as unknown as AsyncIterable<Uint8Array>) {
        sizeBytes += chunk.length;
        if (sizeBytes > limitBytes) throw tooLarge();
        chunks.push(chunk);
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
