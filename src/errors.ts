/**
 * Every error this package throws, and the one table of their codes. docs/errors.md has an entry for each code; a test compares.
 * The function that decides an error writes its message; callers add context with `cause`, never by rewriting.
 */

export interface ErrorCodeEntry {
  /** True when the same call may succeed later without a change of input. */
  readonly retryable: boolean;
}

/** Every error code; docs/errors.md explains each. */
export const ERROR_CODES = {
  ERR_KVT_ARGUMENT: { retryable: false },
  ERR_KVT_STATE: { retryable: false },
  ERR_KVT_CONFIG: { retryable: false },
  ERR_KVT_COMPATIBILITY: { retryable: false },
  ERR_KVT_CAPABILITY: { retryable: false },
  ERR_KVT_RESOURCE: { retryable: true },
  ERR_KVT_REQUEST_TOO_LARGE: { retryable: false },
  ERR_KVT_WIRE: { retryable: false },
  ERR_KVT_PROTOCOL: { retryable: false },
  ERR_KVT_TRANSFER_TIMEOUT: { retryable: true },
  ERR_KVT_TRANSFER_CANCELLED: { retryable: false },
  ERR_KVT_PEER_LOST: { retryable: true },
  ERR_KVT_TRANSPORT: { retryable: true },
  ERR_KVT_DEVICE_LOST: { retryable: false },
  ERR_KVT_SESSION_RETIRED: { retryable: false },
  ERR_KVT_NOT_ASSIGNED: { retryable: false },
  ERR_KVT_INTERNAL: { retryable: false },
} as const satisfies Record<string, ErrorCodeEntry>;

/** One of `ERROR_CODES`. */
export type ErrorCode = keyof typeof ERROR_CODES;

/** What an error carries beside its message. */
export interface KvTransceiverErrorOptions {
  readonly cause?: unknown;
  readonly details?: Readonly<Record<string, unknown>>;
}

const BRAND = Symbol.for('kv-transceiver.error');

/** Base of all errors. `instanceof` also holds across two installed copies of the package. */
export class KvTransceiverError extends Error {
  readonly code: ErrorCode;
  readonly retryable: boolean;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(code: ErrorCode, message: string, options: KvTransceiverErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
    this.retryable = ERROR_CODES[code].retryable;
    this.details = Object.freeze({ ...options.details });
    Object.defineProperty(this, BRAND, { value: true });
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    // Subclasses keep ordinary prototype semantics; only the base is recognised by brand.
    // biome-ignore lint/complexity/noThisInStatic: `this` is the class on the right of instanceof, which may be a subclass
    if (this !== KvTransceiverError) return Function.prototype[Symbol.hasInstance].call(this, value);
    return typeof value === 'object' && value !== null && BRAND in value;
  }
}

/** A value the caller passed is wrong. */
export class ArgumentError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_ARGUMENT', message, options);
  }
}

/** The call is not allowed in the object's present state. */
export class StateError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_STATE', message, options);
  }
}

/** A configuration was rejected; the message names the setting to change. */
export class ConfigError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_CONFIG', message, options);
  }
}

/** Two ranks cannot exchange KV cache; `details.findings` lists why. */
export class CompatibilityError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_COMPATIBILITY', message, options);
  }
}

/** Something this machine or build lacks; the message ends with the remedy. */
export class CapabilityError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_CAPABILITY', message, options);
  }
}

/** Out of pages, aux slots, memory or descriptors for now; retrying later may succeed. */
export class ResourceError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_RESOURCE', message, options);
  }
}

/** A request that can never fit the pool, the arena or the aux buffer. */
export class RequestTooLargeError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_REQUEST_TOO_LARGE', message, options);
  }
}

/** A control frame that cannot be decoded. `details.reason` is the counter it was counted under. */
export class WireError extends KvTransceiverError {
  readonly reason: string;
  constructor(reason: string, message: string, options: KvTransceiverErrorOptions = {}) {
    super('ERR_KVT_WIRE', message, { ...options, details: { ...options.details, reason } });
    this.reason = reason;
  }
}

/** A well-formed frame that says something its sender may not say. */
export class ProtocolError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_PROTOCOL', message, options);
  }
}

/** What a failed transfer knows of itself. */
export interface TransferFailure extends KvTransceiverErrorOptions {
  readonly requestId?: string;
  readonly peer?: string;
  readonly bytesDone?: number;
  /** True when nothing of the transfer can touch memory any more. */
  readonly drained?: boolean;
}

/** Codes of errors that end one transfer. */
export type TransferErrorCode =
  | 'ERR_KVT_TRANSFER_TIMEOUT'
  | 'ERR_KVT_TRANSFER_CANCELLED'
  | 'ERR_KVT_PEER_LOST'
  | 'ERR_KVT_TRANSPORT'
  | 'ERR_KVT_DEVICE_LOST'
  | 'ERR_KVT_SESSION_RETIRED'
  | 'ERR_KVT_NOT_ASSIGNED';

/** A transfer that did not complete. */
export class TransferError extends KvTransceiverError {
  readonly requestId: string | null;
  readonly peer: string | null;
  readonly bytesDone: number;
  readonly drained: boolean;

  constructor(code: TransferErrorCode, message: string, failure: TransferFailure = {}) {
    const { requestId = null, peer = null, bytesDone = 0, drained = false } = failure;
    super(code, message, {
      cause: failure.cause,
      details: { ...failure.details, requestId, peer, bytesDone, drained },
    });
    this.requestId = requestId;
    this.peer = peer;
    this.bytesDone = bytesDone;
    this.drained = drained;
  }
}

/** A clock of the request ran out. */
export class TransferTimeoutError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_TRANSFER_TIMEOUT', message, failure);
  }
}

/** The user or the peer cancelled. */
export class TransferCancelledError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_TRANSFER_CANCELLED', message, failure);
  }
}

/** The peer process or its connection is gone. */
export class PeerLostError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_PEER_LOST', message, failure);
  }
}

/** The data path reported an error. */
export class TransportError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_TRANSPORT', message, failure);
  }
}

/** The GPU is lost to this process: nothing on it works again until the process is started anew. The message has the driver's text. */
export class DeviceLostError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_DEVICE_LOST', message, failure);
  }
}

/** A slice arrived for a session that already ended; it is never created again. */
export class SessionRetiredError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_SESSION_RETIRED', message, failure);
  }
}

/** The context rank that was asked does not have this request; a rank of another DP group may. */
export class NotAssignedError extends TransferError {
  constructor(message: string, failure?: TransferFailure) {
    super('ERR_KVT_NOT_ASSIGNED', message, failure);
  }
}

/** A bug in this package. */
export class InternalError extends KvTransceiverError {
  constructor(message: string, options?: KvTransceiverErrorOptions) {
    super('ERR_KVT_INTERNAL', message, options);
  }
}
