import { KvTransceiverError } from '../../errors.js';

/** The body that OpenAI's clients understand. */
export interface OpenAiErrorBody {
  readonly error: {
    readonly message: string;
    readonly type: string;
    readonly param: string | null;
    readonly code: string | null;
  };
}

/** An error as a client sees it: a status, and a message that says what to change. Never a stack. */
export class ApiError extends Error {
  readonly status: number;
  readonly body: OpenAiErrorBody;
  /** Seconds, for a header; null: none. */
  readonly retryAfterS: number | null;

  constructor(
    status: number,
    message: string,
    options: { readonly param?: string; readonly code?: string; readonly retryAfterS?: number } = {},
  ) {
    super(message);
    this.name = 'ApiError';
    this.status = status;
    this.retryAfterS = options.retryAfterS ?? null;
    this.body = {
      error: { message, type: typeOf(status), param: options.param ?? null, code: options.code ?? null },
    };
  }
}

/** A request that another form of it could have avoided. */
export function badRequest(message: string, param?: string): ApiError {
  return new ApiError(400, message, param === undefined ? {} : { param });
}

/** Why a request could not be answered. What is a bug of ours is not explained to strangers. */
export function apiErrorOf(error: unknown, requestId: string): ApiError {
  if (error instanceof ApiError) return error;
  if (!(error instanceof KvTransceiverError)) return internal(requestId);
  const { code, message } = error;
  switch (code) {
    case 'ERR_KVT_REQUEST_TOO_LARGE':
    case 'ERR_KVT_ARGUMENT':
      return new ApiError(400, message, { code });
    case 'ERR_KVT_RESOURCE':
    case 'ERR_KVT_STATE':
      return new ApiError(503, message, { code, retryAfterS: 1 });
    case 'ERR_KVT_PEER_LOST':
    case 'ERR_KVT_TRANSPORT':
    case 'ERR_KVT_DEVICE_LOST':
    case 'ERR_KVT_SESSION_RETIRED':
    case 'ERR_KVT_NOT_ASSIGNED':
    case 'ERR_KVT_TRANSFER_CANCELLED':
      return new ApiError(502, `a server of this request failed: ${message}`, { code, retryAfterS: 1 });
    case 'ERR_KVT_TRANSFER_TIMEOUT':
      return new ApiError(504, message, { code, retryAfterS: 1 });
    default:
      return internal(requestId);
  }
}

function internal(requestId: string): ApiError {
  return new ApiError(500, `internal error; the log of the server has more under ${requestId}`, {
    code: 'internal_error',
  });
}

function typeOf(status: number): string {
  if (status === 429) return 'rate_limit_error';
  return status < 500 ? 'invalid_request_error' : 'server_error';
}
