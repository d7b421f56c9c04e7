import type { ByteReader } from '../wire/byte-reader.js';
import type { ByteWriter } from '../wire/byte-writer.js';
import { MAX_CODE_BYTES } from '../wire/limits.js';
import { wireError } from '../wire/wire-reason.js';
import {
  MAX_ENDING_TEXT_BYTES,
  MAX_FIRST_TOKENS,
  MAX_NEWS,
  type RankEnding,
  type RankError,
  type RankReport,
  type StepCheck,
} from './rank-report.js';

const OUTCOMES = ['completed', 'failed', 'cancelled'] as const;

const FLAG_AFTER_REST = 0x01;
const FLAG_LEAVING = 0x02;
const FLAG_FORWARD_FAILED = 0x04;

/** Counts before entries, u16; request ids are local ones, below 2^53. */
export function writeReport(writer: ByteWriter, report: RankReport): void {
  writer.u32(report.step, 'step');
  const { forwardError } = report;
  writer.u8(
    (report.afterRest ? FLAG_AFTER_REST : 0) |
      (report.leaving ? FLAG_LEAVING : 0) |
      (forwardError === null ? 0 : FLAG_FORWARD_FAILED),
    'flags',
  );
  const { check } = report;
  writer.u32(check.planHash, 'planHash');
  writer.u32(check.prompts, 'prompts');
  writer.u32(check.promptTokens, 'promptTokens');
  writer.u32(check.decodes, 'decodes');
  writer.u32(check.receives, 'receives');
  writer.u32(check.freeSlots, 'freeSlots');
  writer.u32(check.live, 'live');
  writer.u16(report.offered.length, 'offered');
  for (const { id, digest } of report.offered) {
    writeId(writer, id);
    writer.u32(digest, 'digest');
  }
  for (const ids of [report.cancelled, report.ready, report.drained]) {
    writer.u16(ids.length, 'ids');
    for (const id of ids) writeId(writer, id);
  }
  writer.u16(report.ended.length, 'ended');
  for (const ending of report.ended) writeEnding(writer, ending);
  if (forwardError !== null) writeError(writer, forwardError);
}

/** @throws WireError for anything out of bounds */
export function readReport(reader: ByteReader): RankReport {
  const step = reader.u32('step');
  const flags = reader.u8('flags');
  const check: StepCheck = {
    planHash: reader.u32('planHash'),
    prompts: reader.u32('prompts'),
    promptTokens: reader.u32('promptTokens'),
    decodes: reader.u32('decodes'),
    receives: reader.u32('receives'),
    freeSlots: reader.u32('freeSlots'),
    live: reader.u32('live'),
  };
  const offered = readList(reader, 'offered', () => ({ id: readId(reader), digest: reader.u32('digest') }));
  const cancelled = readList(reader, 'cancelled', () => readId(reader));
  const ready = readList(reader, 'ready', () => readId(reader));
  const drained = readList(reader, 'drained', () => readId(reader));
  const ended = readList(reader, 'ended', () => readEnding(reader));
  return {
    step,
    afterRest: (flags & FLAG_AFTER_REST) !== 0,
    leaving: (flags & FLAG_LEAVING) !== 0,
    forwardError: (flags & FLAG_FORWARD_FAILED) === 0 ? null : readError(reader),
    check,
    offered,
    cancelled,
    ready,
    ended,
    drained,
  };
}

function writeEnding(writer: ByteWriter, ending: RankEnding): void {
  writeId(writer, ending.id);
  writer.u8(OUTCOMES.indexOf(ending.outcome), 'outcome');
  writer.u8(ending.firstTokens.length, 'firstTokens');
  for (const token of ending.firstTokens) writer.u32(token, 'firstToken');
  writeError(writer, ending);
}

function writeError(writer: ByteWriter, { code, message }: RankError): void {
  writer.text(code, MAX_CODE_BYTES, 'code');
  writer.text(message, MAX_ENDING_TEXT_BYTES, 'message');
}

function readEnding(reader: ByteReader): RankEnding {
  const id = readId(reader);
  const outcome = OUTCOMES[reader.u8('outcome')];
  if (outcome === undefined) throw wireError('bad-value', 'outcome of a request is none of those known');
  const tokenCount = reader.u8('firstTokens');
  if (tokenCount > MAX_FIRST_TOKENS)
    throw wireError('count-over-cap', `${tokenCount} first tokens, at most ${MAX_FIRST_TOKENS}`);
  const firstTokens = Array.from({ length: tokenCount }, () => reader.u32('firstToken'));
  return { id, outcome, firstTokens, ...readError(reader) };
}

function readError(reader: ByteReader): RankError {
  const code = reader.ascii(MAX_CODE_BYTES, 'code');
  return { code, message: reader.string(MAX_ENDING_TEXT_BYTES, 'message') };
}

function readList<T>(reader: ByteReader, field: string, read: () => T): T[] {
  const count = reader.u16(field);
  if (count > MAX_NEWS) throw wireError('count-over-cap', `${field} has ${count} entries, at most ${MAX_NEWS}`);
  // Grown one by one: a count that lies ends at the end of the frame.
  const entries: T[] = [];
  for (let i = 0; i < count; i++) entries.push(read());
  return entries;
}

function writeId(writer: ByteWriter, id: number): void {
  writer.u64(BigInt(id), 'id');
}

function readId(reader: ByteReader): number {
  const id = reader.u64('id');
  if (id > BigInt(Number.MAX_SAFE_INTEGER)) throw wireError('bad-value', `request id ${id} is no local id`);
  return Number(id);
}
