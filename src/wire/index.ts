/** Control plane on the wire: messages, their codec, and the messenger that carries them. */
export { type CurveKeyPair, generateCurveKeyPair, publicKeyOf } from './curve-keys.js';
export { connectionsWithin, readDescriptorLimit } from './descriptor-budget.js';
export { type EndpointParts, formatEndpoint, parseEndpoint } from './endpoint.js';
export { decodeFrame, type EncodeOptions, encodeFrame } from './frame-codec.js';
export {
  type FrameHeader,
  HEADER_BYTES,
  majorsOf,
  negotiate,
  negotiateMajor,
  negotiateMinor,
  peekHeader,
  type SpokenMajor,
  SUPPORTED_MAJORS,
  WIRE_MAJOR,
  WIRE_MINOR,
  WIRE_VERSIONS,
  type WireVersions,
} from './frame-header.js';
export { instanceNameProblem } from './instance-name.js';
export { MAX_FRAME_BYTES, MAX_LAYER_GROUPS, MAX_WRITERS } from './limits.js';
export * from './messages.js';
export type { FrameOrigin, Messenger } from './messenger.js';
export type { DropReason, HandshakeRefusal, MessengerCounts } from './messenger-counters.js';
export { messengerOptions } from './messenger-options.js';
export type { WireReason } from './wire-reason.js';
export type { PortRange } from './zeromq-bind.js';
export type { CurveOptions } from './zeromq-curve.js';
export { ZeromqMessenger, type ZeromqMessengerOptions } from './zeromq-messenger.js';
