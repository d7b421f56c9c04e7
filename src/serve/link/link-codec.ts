import { decode, encode } from '@msgpack/msgpack';
import { NODE_COUNT, PROCESS_COUNT } from '../../coordinator/snowflake-ids.js';
import { ERROR_CODES, type ErrorCode } from '../../errors.js';
import type { DisaggregatedParams, PromptUsage, SamplingParams, TransferPolicy } from '../../executor/request.js';
import { maxDraftTokens } from '../../session/transferable-request.js';
import { asInteger, DecodedMap } from '../../wire/decoded-map.js';
import { MAX_FRAME_BYTES, MAX_ORDINAL, MAX_TRACEPARENT_BYTES } from '../../wire/limits.js';
import { checkMsgpackShape } from '../../wire/msgpack-shape.js';
import { wireError } from '../../wire/wire-reason.js';
import {
  FRAME_MESSAGES,
  LINK_VERSION,
  MAX_LABEL_BYTES,
  MAX_METRICS_BYTES,
  MAX_REASON_BYTES,
  MAX_STOP_TOKENS,
  MAX_TOKEN,
  MAX_TOKENS,
} from './link-limits.js';
import type { FrontMessage, IdOrigin, LinkFrame, WorkerMessage } from './link-message.js';

const MAX_INTEGER = Number.MAX_SAFE_INTEGER;
const ROLES = ['context', 'generation'] as const;
const PHASES = ['ready', 'draining'] as const;
const OUTCOMES = ['completed', 'failed', 'cancelled'] as const;
const TYPES = ['context_only', 'generation_only', 'context_and_generation'] as const;
const STYLES = ['context_first', 'generation_first'] as const;

export function encodeFrame({ session, sequence, messages }: LinkFrame<FrontMessage | WorkerMessage>): Uint8Array {
  const m = messages.map(wireForm);
  // The encoder's own buffer is used again; the messenger keeps what it is given.
  return encode({ v: LINK_VERSION, s: session, n: sequence, m }, { useBigInt64: true }).slice();
}

/**
 * Reads a message as the other end will: one that it refuses costs the whole session, with every request of it, and one that is refused before
 * costs itself.
 * @throws WireError naming the field and what it may be
 */
export function checkFrontMessage(message: FrontMessage): void {
  readFrontMessage(new DecodedMap(wireForm(message), message.type));
}

/** @throws as `checkFrontMessage` */
export function checkWorkerMessage(message: WorkerMessage): void {
  readWorkerMessage(new DecodedMap(message, message.type));
}

/** @throws WireError for whatever is not a frame of a front */
export function decodeFrontFrame(frame: Uint8Array): LinkFrame<FrontMessage> {
  return decodeFrame(frame, readFrontMessage);
}

/** @throws WireError for whatever is not a frame of a worker */
export function decodeWorkerFrame(frame: Uint8Array): LinkFrame<WorkerMessage> {
  return decodeFrame(frame, readWorkerMessage);
}

function decodeFrame<M>(frame: Uint8Array, read: (map: DecodedMap) => M): LinkFrame<M> {
  if (frame.length > MAX_FRAME_BYTES) throw wireError('frame-too-large', `a frame of ${frame.length} bytes`);
  checkMsgpackShape(frame);
  let value: unknown;
  try {
    value = decode(frame, { useBigInt64: true });
  } catch (cause) {
    throw wireError('bad-msgpack', `a frame that msgpack cannot read: ${cause instanceof Error ? cause.message : ''}`);
  }
  const map = new DecodedMap(value, 'frame');
  map.integer('v', LINK_VERSION, LINK_VERSION);
  return {
    session: map.u64('s'),
    sequence: map.integer('n', 0, MAX_INTEGER),
    messages: map.list('m', FRAME_MESSAGES, (item, path) => read(new DecodedMap(item, path))),
  };
}

function readFrontMessage(map: DecodedMap): FrontMessage {
  const type = map.oneOf('type', ['hello', 'submit', 'cancel', 'ping', 'metrics', 'bye'] as const);
  switch (type) {
    case 'hello':
      return {
        type,
        endpoint: map.endpoint('endpoint'),
        role: map.oneOf('role', ROLES),
        engine: map.string('engine', MAX_LABEL_BYTES),
        ids: readIdOrigin(map.map('ids')),
      };
    case 'submit':
      return {
        type,
        call: callOf(map),
        promptTokens: tokensOf(map.bytes('promptTokens', MAX_TOKENS * 4)),
        maxTokens: map.integer('maxTokens', 1, MAX_TOKENS),
        params: readParams(map.map('params')),
        transferPolicy: nullable(map, 'transferPolicy', readPolicy),
        sampling: nullable(map, 'sampling', readSampling),
        stopTokens: tokenList(map, 'stopTokens', MAX_STOP_TOKENS),
      };
    case 'cancel':
      return { type, call: callOf(map) };
    case 'ping':
      return { type, endpoint: map.endpoint('endpoint') };
    case 'metrics':
      return { type, query: map.integer('query', 0, MAX_INTEGER) };
    case 'bye':
      return { type };
  }
}

function readWorkerMessage(map: DecodedMap): WorkerMessage {
  const type = map.oneOf('type', [
    'welcome',
    'refused',
    'unknown',
    'answer',
    'tokens',
    'done',
    'pong',
    'metrics',
  ] as const);
  switch (type) {
    case 'welcome':
      return {
        type,
        incarnation: map.u64('incarnation'),
        infoEndpoint: map.endpoint('infoEndpoint'),
        pid: map.integer('pid', 0, MAX_ORDINAL),
        phase: map.oneOf('phase', PHASES),
      };
    case 'refused':
      return {
        type,
        reason: map.string('reason', MAX_REASON_BYTES),
        takenIds: nullable(map, 'takenIds', readIdOrigin),
      };
    case 'unknown':
      return { type };
    case 'answer':
      return { type, call: callOf(map), params: readParams(map.map('params')) };
    case 'tokens':
      return { type, call: callOf(map), index: map.integer('index', 0, MAX_TOKENS), tokens: tokenList(map, 'tokens') };
    case 'done':
      return {
        type,
        call: callOf(map),
        outcome: map.oneOf('outcome', OUTCOMES),
        tokenCount: map.integer('tokenCount', 0, MAX_TOKENS),
        error: nullable(map, 'error', (error) => ({
          code: error.oneOf('code', Object.keys(ERROR_CODES) as ErrorCode[]),
          message: error.string('message', MAX_REASON_BYTES),
        })),
        usage: nullable(map, 'usage', readUsage),
        contextUsage: nullable(map, 'contextUsage', readUsage),
        refused: map.boolean('refused'),
      };
    case 'pong':
      return { type, phase: map.oneOf('phase', PHASES) };
    case 'metrics':
      return { type, query: map.integer('query', 0, MAX_INTEGER), text: map.string('text', MAX_METRICS_BYTES) };
  }
}

function readIdOrigin(map: DecodedMap): IdOrigin {
  return {
    nodeId: map.integer('nodeId', 0, NODE_COUNT - 1),
    processId: map.integer('processId', 0, PROCESS_COUNT - 1),
  };
}

function readParams(map: DecodedMap): DisaggregatedParams {
  const requestType = map.oneOf('requestType', TYPES);
  const scheduleStyle = map.oneOf('scheduleStyle', STYLES);
  return {
    requestType,
    scheduleStyle,
    ctxRequestId: map.field('ctxRequestId', (value) => (value === null ? null : map.u64('ctxRequestId'))),
    disaggRequestId: map.field('disaggRequestId', (value) => (value === null ? null : map.u64('disaggRequestId'))),
    ctxDpRank: map.field('ctxDpRank', (value, path) =>
      value === null ? null : asInteger(value, 0, MAX_ORDINAL, path),
    ),
    ctxInfoEndpoint: map.field('ctxInfoEndpoint', (value) => (value === null ? null : map.endpoint('ctxInfoEndpoint'))),
    genInfoEndpoint: map.field('genInfoEndpoint', (value) => (value == null ? null : map.endpoint('genInfoEndpoint'))),
    firstGenTokens: tokenList(map, 'firstGenTokens'),
    firstGenLogProbs: map.field('firstGenLogProbs', (value) =>
      value == null ? [] : map.list('firstGenLogProbs', MAX_TOKENS, (item, path) => finite(item, -Infinity, 0, path)),
    ),
    draftTokens: tokenList(map, 'draftTokens', Math.min(MAX_TOKENS, maxDraftTokens({ requestType, scheduleStyle }))),
    ctxUsage: map.field('ctxUsage', (value, path) => (value == null ? null : readUsage(new DecodedMap(value, path)))),
    traceparent: map.string('traceparent', MAX_TRACEPARENT_BYTES),
  };
}

function readUsage(map: DecodedMap): PromptUsage {
  return {
    promptTokens: map.integer('promptTokens', 0, MAX_TOKENS),
    cachedTokens: map.integer('cachedTokens', 0, MAX_TOKENS),
  };
}

function readPolicy(map: DecodedMap): TransferPolicy {
  return { pipelined: map.boolean('pipelined'), earlyPrefix: map.boolean('earlyPrefix') };
}

function readSampling(map: DecodedMap): SamplingParams {
  return {
    temperature: map.field('temperature', (value, path) => finite(value, 0, 100, path)),
    topP: map.field('topP', (value, path) => finite(value, Number.MIN_VALUE, 1, path)),
    seed: map.integer('seed', -MAX_INTEGER, MAX_INTEGER),
  };
}

function nullable<T>(map: DecodedMap, name: string, read: (value: DecodedMap) => T): T | null {
  return map.field(name, (value, path) => (value === null ? null : read(new DecodedMap(value, path))));
}

function finite(value: unknown, min: number, max: number, path: string): number {
  if (typeof value !== 'number' || !(value >= min && value <= max))
    throw wireError('bad-value', `${path} must be a number from ${min} to ${max}`);
  return value;
}

function callOf(map: DecodedMap): number {
  return map.integer('call', 0, MAX_INTEGER);
}

function tokenList(map: DecodedMap, name: string, maxCount = MAX_TOKENS): number[] {
  return map.list(name, maxCount, (item, path) => asInteger(item, 0, MAX_TOKEN, path));
}

function wireForm(message: FrontMessage | WorkerMessage): object {
  return message.type === 'submit' ? { ...message, promptTokens: tokenBytes(message.promptTokens) } : message;
}

function tokenBytes(tokens: Uint32Array): Uint8Array {
  return new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
}

function tokensOf(bytes: Uint8Array): Uint32Array {
  if (bytes.length % 4 !== 0)
    throw wireError('bad-value', `promptTokens has ${bytes.length} bytes, not a multiple of 4`);
  // `bytes` is a copy of its own and begins its buffer, as 32-bit words must.
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
}
