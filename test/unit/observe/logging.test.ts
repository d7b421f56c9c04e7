import { randomBytes } from 'node:crypto';
import { describe, expect, it } from 'vitest';
import { resolveCacheTransceiverConfig } from '../../../src/config/index.js';
import { createLogger } from '../../../src/observe/create-logger.js';
import { KvLogging } from '../../../src/observe/kv-logging.js';
import { type LogFields, type Logger, SILENT_LOGGER, transceiverLog } from '../../../src/observe/logger.js';
import type { FallbackNotice } from '../../../src/session/transfer-observer.js';
import { TransferPair } from '../../sim-lite/transfer-pair.js';
import { ObservedTransfer, openToAnybody } from './observed-transfer.js';

interface Line extends Record<string, unknown> {
  readonly level: string;
  readonly msg: string;
}

function recorded(level: 'debug' | 'info' = 'info') {
  const text: string[] = [];
  const logger = createLogger({
    level,
    fields: { instance: 'test' },
    stream: { write: (line) => void text.push(line) },
  });
  const lines = (msg?: string): Line[] =>
    text.map((line) => JSON.parse(line) as Line).filter((line) => msg === undefined || line.msg === msg);
  return { logger, text, lines };
}

describe('log lines', () => {
  it('one for each end of each transfer, with the ids of the request', async () => {
    const pair = await TransferPair.create();
    const { logger, lines } = recorded();
    const logging = new KvLogging({ logger, clock: pair.clock });
    logging.attach({ transceiver: pair.context.transceiver });
    logging.attach({ transceiver: pair.generation.transceiver });
    await new ObservedTransfer(pair).whole();
    const ends = lines('transfer ended');
    const bytes = pair.context.settled[0]?.timings.bytesDone;
    expect(ends).toHaveLength(2);
    expect(ends.find(({ side }) => side === 'context')).toMatchObject({
      level: 'info',
      instance: 'test',
      rid: (1n << 41n).toString(),
      request: 1,
      role: 'context',
      outcome: 'completed',
      slices: 2,
      bytes,
    });
    expect(ends.find(({ side }) => side === 'generation')).toMatchObject({ outcome: 'completed', bytes });
    expect(lines()).toHaveLength(2);
  });

  it('a failure is a warning with its class; a peer that was needed and is gone too; those that come are for debugging', async () => {
    const pair = await TransferPair.create();
    const { logger, lines } = recorded('debug');
    new KvLogging({ logger, clock: pair.clock }).attach({ transceiver: pair.generation.transceiver });
    const transfer = new ObservedTransfer(pair);
    transfer.ask();
    await pair.run(100);
    pair.kill(pair.context);
    await pair.run(4000);
    expect(lines('peer ready').map(({ level }) => level)).toEqual(['debug']);
    expect(lines('peer lost')).toMatchObject([{ level: 'warn', peer: expect.stringContaining('context rank 0') }]);
    expect(lines('transfer ended')).toMatchObject([
      { level: 'warn', outcome: 'failed', code: 'ERR_KVT_PEER_LOST', salvageable: 0 },
    ]);
  });

  it('a fallback is told once, whichever way it comes', async () => {
    const pair = await TransferPair.create();
    const { logger, lines } = recorded();
    const logging = new KvLogging({ logger, clock: pair.clock });
    const notice: FallbackNotice = { source: 'agent', message: 'p2p is not available: no NVLink' };
    const told: ((notice: FallbackNotice) => void)[] = [];
    for (let i = 0; i < 2; i += 1)
      logging.attach({
        transceiver: {
          stats: () => pair.context.transceiver.stats(),
          observe: (observer) => {
            told.push((one) => observer.onFallback?.(one));
            return () => {};
          },
        },
      });
    for (const tell of told) tell(notice);
    expect(lines()).toMatchObject([{ level: 'warn', msg: 'fallback', source: 'agent', reason: notice.message }]);
    // What the transceiver wrote to its operator's log was told.
    logging.log.warn('backend: DEFAULT uses HOST');
    for (const tell of told) tell({ ...notice, message: 'backend: DEFAULT uses HOST' });
    expect(lines()).toHaveLength(2);
  });

  it('refused frames are told at most every ten seconds for each reason, with the number of those left out', async () => {
    const { pair, deliver } = await openToAnybody();
    const { logger, lines } = recorded();
    new KvLogging({ logger, clock: pair.clock }).attach({ transceiver: pair.context.transceiver });
    for (let i = 0; i < 1000; i += 1) deliver('context', new Uint8Array(64));
    deliver('context', Uint8Array.of(1));
    expect(lines('frame refused')).toMatchObject([
      { level: 'warn', reason: 'wire_error:bad-magic', suppressed: 0 },
      { level: 'warn', reason: 'wire_error:truncated', suppressed: 0 },
    ]);
    await pair.run(10_100, 100);
    deliver('context', new Uint8Array(64));
    expect(lines('frame refused').at(-1)).toMatchObject({ reason: 'wire_error:bad-magic', suppressed: 999 });
    expect(lines('frame refused')).toHaveLength(3);
  });
});

describe('what is never logged', () => {
  it('no tokens, no metadata of agents, no tickets, in completed, failed and cancelled transfers', async () => {
    const { pair, deliver } = await openToAnybody();
    const { logger, text } = recorded('debug');
    const logging = new KvLogging({ logger, clock: pair.clock });
    for (const { transceiver } of [pair.context, pair.generation]) logging.attach({ transceiver });
    await new ObservedTransfer(pair).whole();
    const cancelled = new ObservedTransfer(pair, 2, { rid: (1n << 41n) + 1n });
    cancelled.ask();
    await pair.run(100);
    const { receive } = pair.generation.transceiver.dump();
    const tickets = receive.flatMap(({ writers }) => writers.map(({ ticket }) => ticket.replace(/^0+/, '')));
    expect(tickets).toHaveLength(1);
    pair.generation.transceiver.cancelRequest(cancelled.received, 'its user left');
    await pair.run(500);
    deliver('context', randomBytes(64));
    pair.kill(pair.context);
    await pair.run(4000);
    const all = text.join('');
    expect(all).toContain('"outcome":"cancelled"');
    const metadata = Buffer.from(await pair.generation.agent.metadata());
    for (const secret of [metadata.toString('base64'), metadata.toString('hex'), ...tickets]) {
      expect(secret.length).toBeGreaterThan(3);
      expect(all).not.toContain(secret);
    }
    // Token ids of the prompts: 1000 .. 1015 and 2000 .. 2015, and 7, the first one generated.
    expect(all).not.toMatch(/\b[12]0(?:0[0-9]|1[0-5])\b/);
  });

  it('not by whoever hands them in either', () => {
    const { logger, text } = recorded();
    const fields = { secretKey: 'KEY-1', agentMetadata: 'META-1', promptTokens: 'TOK-1', ticket: 'TICK-1', rid: '5' };
    logger.info(fields, 'own line');
    logger.child({ request: 1 }).warn({ inner: { secretKey: 'KEY-2', tokens: [1, 2] } } as unknown as LogFields, 'x');
    const all = text.join('');
    expect(all).not.toMatch(/KEY-|META-|TOK-|TICK-|\[1,2\]/);
    expect(JSON.parse(text[0] ?? '')).toMatchObject({ rid: '5', secretKey: '[redacted]' });
  });

  it('a secret in the wrong place of a configuration does not come into its warnings', () => {
    const { logger, text } = recorded();
    const { warnings } = resolveCacheTransceiverConfig({ backend: 'DEFAULT', transceiver_runtime: 'KEY-3' });
    const log = transceiverLog(logger);
    for (const { setting, message } of warnings) log.warn(`${setting}: ${message}`);
    expect(text.length).toBe(2);
    expect(text.join('')).not.toContain('KEY-3');
  });
});

describe('loggers', () => {
  it('are silent by default', () => {
    const silent: Logger = SILENT_LOGGER.child({ rid: '1' });
    expect(silent).toBe(SILENT_LOGGER);
    for (const level of ['debug', 'info', 'warn', 'error'] as const) expect(silent[level]({}, 'x')).toBeUndefined();
  });

  it('write from their level on, one JSON object a line', () => {
    const { logger, text, lines } = recorded();
    logger.debug({}, 'not this');
    logger.error({ code: 'ERR_KVT_INTERNAL' }, 'this');
    expect(text).toHaveLength(1);
    expect(text[0]?.endsWith('\n')).toBe(true);
    expect(lines()[0]).toMatchObject({ level: 'error', code: 'ERR_KVT_INTERNAL', msg: 'this', instance: 'test' });
    expect(Number.isNaN(Date.parse(String(lines()[0]?.['time'])))).toBe(false);
  });
});
