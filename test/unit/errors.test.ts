import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import * as errors from '../../src/errors.js';
import { ERROR_CODES, type ErrorCode, KvTransceiverError, TransferError, WireError } from '../../src/errors.js';
import { WIRE_REASONS } from '../../src/wire/wire-reason.js';

const SRC = new URL('../../src/', import.meta.url);
const DOCS = readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8');

interface Entry {
  readonly className: string;
  readonly retryable: boolean;
  readonly text: string;
}

const ENTRIES = new Map<string, Entry>(
  DOCS.split(/^### /m)
    .slice(1)
    .map((section) => {
      const [code = ''] = section.split('\n');
      const head = /^Class `(\w+)`, (not )?retryable/m.exec(section);
      return [code, { className: head?.[1] ?? '', retryable: head?.[2] === undefined, text: section }];
    }),
);

const CLASSES: Readonly<Record<ErrorCode, () => KvTransceiverError>> = {
  ERR_KVT_ARGUMENT: () => new errors.ArgumentError('m'),
  ERR_KVT_STATE: () => new errors.StateError('m'),
  ERR_KVT_CONFIG: () => new errors.ConfigError('m'),
  ERR_KVT_COMPATIBILITY: () => new errors.CompatibilityError('m'),
  ERR_KVT_CAPABILITY: () => new errors.CapabilityError('m'),
  ERR_KVT_RESOURCE: () => new errors.ResourceError('m'),
  ERR_KVT_REQUEST_TOO_LARGE: () => new errors.RequestTooLargeError('m'),
  ERR_KVT_WIRE: () => new WireError('bad-magic', 'm'),
  ERR_KVT_PROTOCOL: () => new errors.ProtocolError('m'),
  ERR_KVT_TRANSFER_TIMEOUT: () => new errors.TransferTimeoutError('m'),
  ERR_KVT_TRANSFER_CANCELLED: () => new errors.TransferCancelledError('m'),
  ERR_KVT_PEER_LOST: () => new errors.PeerLostError('m'),
  ERR_KVT_TRANSPORT: () => new errors.TransportError('m'),
  ERR_KVT_DEVICE_LOST: () => new errors.DeviceLostError('m'),
  ERR_KVT_SESSION_RETIRED: () => new errors.SessionRetiredError('m'),
  ERR_KVT_NOT_ASSIGNED: () => new errors.NotAssignedError('m'),
  ERR_KVT_INTERNAL: () => new errors.InternalError('m'),
};

describe('docs/errors.md', () => {
  it('has one entry for each code, and no other', () => {
    expect([...ENTRIES.keys()].toSorted()).toEqual(Object.keys(ERROR_CODES).toSorted());
    expect(DOCS.match(/^### /gm)).toHaveLength(ENTRIES.size);
  });

  it.each(Object.entries(CLASSES))('%s: class, retryable and the three parts', (code, make) => {
    const entry = ENTRIES.get(code);
    const error = make();
    expect([entry?.className, entry?.retryable]).toEqual([error.name, error.retryable]);
    for (const part of ['Meaning', 'When', 'Remedy']) expect(entry?.text).toContain(`- **${part}**: `);
  });

  it('explains every reason of a WireError, and no other', () => {
    const table = [...(ENTRIES.get('ERR_KVT_WIRE')?.text ?? '').matchAll(/^\| `([a-z-]+)` \|/gm)].map((row) => row[1]);
    expect(table.toSorted()).toEqual([...WIRE_REASONS].toSorted());
  });
});

describe('codes', () => {
  it('every code that the sources name is in the table', () => {
    const unknown: string[] = [];
    for (const file of readdirSync(SRC, { recursive: true, encoding: 'utf8' })) {
      if (!file.endsWith('.ts')) continue;
      const named = readFileSync(new URL(file, SRC), 'utf8').matchAll(/\bERR_KVT_[A-Z]+(?:_[A-Z]+)*\b/g);
      for (const [code] of named) if (!Object.hasOwn(ERROR_CODES, code)) unknown.push(`${file}: ${code}`);
    }
    expect(unknown).toEqual([]);
  });

  it('every error class is in the list above', () => {
    const bases = new Set<unknown>([KvTransceiverError, TransferError]);
    const exported = Object.values(errors).filter((value) => typeof value === 'function' && !bases.has(value));
    expect(new Set(Object.values(CLASSES).map((make) => make().constructor))).toEqual(new Set(exported));
  });

  it.each(Object.entries(CLASSES))('%s', (code, make) => {
    const error = make();
    expect(error).toBeInstanceOf(Error);
    expect(error).toBeInstanceOf(KvTransceiverError);
    expect([error.code, error.retryable, error.message]).toEqual([code, ERROR_CODES[code as ErrorCode].retryable, 'm']);
    expect(error.name).toBe(error.constructor.name);
    expect(Object.isFrozen(error.details)).toBe(true);
    expect('cause' in error).toBe(false);
  });
});

describe('classes', () => {
  it('carry cause and details', () => {
    const cause = new Error('below');
    const error = new errors.ConfigError('m', { cause, details: { setting: 'x' } });
    expect(error.cause).toBe(cause);
    expect(error.details).toEqual({ setting: 'x' });
  });

  it('a transfer says how far it came', () => {
    const error = new errors.PeerLostError('m', {
      requestId: '7',
      peer: 'ctx-0',
      bytesDone: 5,
      drained: true,
      details: { a: 1 },
    });
    expect(error).toBeInstanceOf(TransferError);
    expect([error.requestId, error.peer, error.bytesDone, error.drained]).toEqual(['7', 'ctx-0', 5, true]);
    expect(error.details).toEqual({ a: 1, requestId: '7', peer: 'ctx-0', bytesDone: 5, drained: true });
    const bare = new errors.TransportError('m');
    expect([bare.requestId, bare.peer, bare.bytesDone, bare.drained]).toEqual([null, null, 0, false]);
  });

  it('a WireError has its reason twice, for code and for logs', () => {
    const error = new WireError('bad-magic', 'm', { details: { rid: 1n } });
    expect([error.reason, error.details]).toEqual(['bad-magic', { rid: 1n, reason: 'bad-magic' }]);
  });

  it('instanceof tells subclasses apart, and knows errors of another copy of the package', () => {
    const argument = new errors.ArgumentError('m');
    expect([argument instanceof errors.StateError, argument instanceof errors.ArgumentError]).toEqual([false, true]);
    const foreign = Object.assign(new Error('m'), { [Symbol.for('kv-transceiver.error')]: true });
    expect([foreign instanceof KvTransceiverError, foreign instanceof errors.ArgumentError]).toEqual([true, false]);
    for (const other of [new Error('m'), null, undefined, 'ERR_KVT_STATE', {}]) {
      expect((other as unknown) instanceof KvTransceiverError).toBe(false);
    }
  });
});
