import { WireError } from '../errors.js';

/** Why a frame was refused; also the label of the counter it is counted under. docs/errors.md explains each. */
export const WIRE_REASONS = [
  'frame-too-large',
  'truncated',
  'bad-magic',
  'unsupported-major',
  'unknown-type',
  'trailing-bytes',
  'count-over-cap',
  'string-too-long',
  'bad-string',
  'bad-endpoint',
  'bad-msgpack',
  'bad-page-table',
  'bad-value',
] as const;

export type WireReason = (typeof WIRE_REASONS)[number];

export function wireError(reason: WireReason, message: string, cause?: unknown): WireError {
  return new WireError(reason, message, { cause });
}
