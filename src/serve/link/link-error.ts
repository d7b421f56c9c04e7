import {
  ArgumentError,
  CapabilityError,
  CompatibilityError,
  ConfigError,
  InternalError,
  KvTransceiverError,
  ProtocolError,
  RequestTooLargeError,
  ResourceError,
  StateError,
  TransferError,
} from '../../errors.js';
import { clipText } from '../../session/clip-text.js';
import type { LinkError } from './link-message.js';

const CLASSES = {
  ERR_KVT_ARGUMENT: ArgumentError,
  ERR_KVT_STATE: StateError,
  ERR_KVT_CONFIG: ConfigError,
  ERR_KVT_COMPATIBILITY: CompatibilityError,
  ERR_KVT_CAPABILITY: CapabilityError,
  ERR_KVT_RESOURCE: ResourceError,
  ERR_KVT_REQUEST_TOO_LARGE: RequestTooLargeError,
  ERR_KVT_PROTOCOL: ProtocolError,
  ERR_KVT_INTERNAL: InternalError,
} as const;

/** Stacks, causes and details stay in the process that has the log. */
export function toLink(error: KvTransceiverError): LinkError {
  return { code: error.code, message: clipText(error.message) };
}

/** The same class and code as on the other side: what may be tried again, and where, depends on them. */
export function fromLink({ code, message }: LinkError, peer: string): KvTransceiverError {
  if (code in CLASSES) return new CLASSES[code as keyof typeof CLASSES](message, { details: { peer } });
  if (code === 'ERR_KVT_WIRE') return new KvTransceiverError(code, message, { details: { peer } });
  return new TransferError(code as ConstructorParameters<typeof TransferError>[0], message, { peer });
}
