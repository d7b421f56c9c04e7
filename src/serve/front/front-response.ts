import { type IncomingMessage, type OutgoingHttpHeader, type OutgoingHttpHeaders, ServerResponse } from 'node:http';

/** The rest of a body that is read for nobody, so that its connection can be kept. */
export const MAX_REST_BYTES = 64 * 1024;
/** Of an answer whose request was refused before its path was looked at. */
export const NO_ROUTE = 'none';

/** Hears of each answer once, when its status is known. */
export type OnAnswer = (route: string, status: number) => void;

type Headers = OutgoingHttpHeaders | OutgoingHttpHeader[];

/**
 * Role: an answer that says `connection: close` when that is what will happen, and that is counted once, whoever makes it.
 * Why: requests are refused while their bodies still come. A short rest of one runs off, and the next request may follow it; for the rest the
 *   connection is ended, and Node, which would read on without a bound, must say so. Its user might lose the next request otherwise.
 */
export class FrontResponse extends ServerResponse {
  /** One of the names that are counted, never a path that a client may have made up. */
  route = NO_ROUTE;
  onAnswer: OnAnswer = () => {};
  #isCounted = false;

  /** For an answer that is written past it as well. */
  count(status: number): void {
    if (this.#isCounted) return;
    this.#isCounted = true;
    this.onAnswer(this.route, status);
  }

  override writeHead(status: number, first?: string | Headers, second?: Headers): this {
    this.count(status);
    if (!this.req.complete && !isShort(this.req)) this.setHeader('connection', 'close');
    return typeof first === 'string' ? super.writeHead(status, first, second) : super.writeHead(status, first);
  }
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) !== 0;
}

/** Chunks say nothing of how many will come, and may be a byte each. */
function isShort({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] === undefined && Number(headers['content-length'] ?? 0) <= MAX_REST_BYTES;
}
