import {
  ArgumentError,
  CapabilityError,
  DeviceLostError,
  InternalError,
  type KvTransceiverError,
  PeerLostError,
  ResourceError,
  StateError,
  TransferCancelledError,
  type TransferFailure,
  TransportError,
} from '../errors.js';

/** `StatusCode` of native/core/status.h. */
export enum NativeStatus {
  Ok = 0,
  InvalidArgument = 1,
  State = 2,
  Capability = 3,
  Resource = 4,
  Transport = 5,
  PeerLost = 6,
  Cancelled = 7,
  Internal = 8,
  DeviceLost = 9,
}

/** The typed error of a status. The message is native code's own. */
export function errorOfStatus(status: number, message: string, failure: TransferFailure = {}): KvTransceiverError {
  switch (status as NativeStatus) {
    case NativeStatus.InvalidArgument:
      return new ArgumentError(message, failure);
    case NativeStatus.State:
      return new StateError(message, failure);
    case NativeStatus.Capability:
      return new CapabilityError(message, failure);
    case NativeStatus.Resource:
      return new ResourceError(message, failure);
    case NativeStatus.Transport:
      return new TransportError(message, failure);
    case NativeStatus.PeerLost:
      return new PeerLostError(message, failure);
    case NativeStatus.DeviceLost:
      return new DeviceLostError(message, failure);
    case NativeStatus.Cancelled:
      return new TransferCancelledError(message, failure);
    default:
      return new InternalError(message, failure);
  }
}

/** What native code threw, as one of this package's errors. Anything that is not native code's is given back as it is. */
export function typedError(thrown: unknown, failure: TransferFailure = {}): unknown {
  const isNative = thrown instanceof Error && 'status' in thrown && typeof thrown.status === 'number';
  return isNative ? errorOfStatus(thrown.status as number, thrown.message, failure) : thrown;
}
