import { context, trace } from '@opentelemetry/api';
import { describe, expect, it } from 'vitest';
import { KvTracing } from '../../../src/observe/kv-tracing.js';
import { SILENT_LOGGER } from '../../../src/observe/logger.js';
import { Observation } from '../../../src/observe/observation.js';
import type { TransferObserver } from '../../../src/session/transfer-observer.js';
import { TransferPair } from '../../sim-lite/transfer-pair.js';
import { ObservedTransfer } from './observed-transfer.js';

const TRACEPARENT = `00-${'4bf92f3577b34da6a3ce929d0e0e4736'}-00f067aa0ba902b7-01`;

describe('observers of a transceiver', () => {
  it('hear every hook, in an order that makes sense, until they are taken away', async () => {
    const pair = await TransferPair.create();
    const heard: string[] = [];
    const observer: TransferObserver = {
      onStarted: ({ side, rid }) => void heard.push(`started ${side} ${rid}`),
      onReceiverAsked: ({ peer }) => void heard.push(`asked by ${peer.split(' ')[0]}`),
      onPeersArrived: (_, side) => void heard.push(`arrived ${side}`),
      onSliceEnded: ({ seq, status, beginBlock, endBlock, path }) =>
        void heard.push(`${seq === null ? 'aux' : `slice ${seq} [${beginBlock}, ${endBlock}) ${path}`} ${status}`),
      onSettled: ({ outcome }) => void heard.push(outcome),
      onPeerReady: () => void heard.push('peer'),
      onPeerLost: (_, __, isBusy) => void heard.push(`lost ${isBusy}`),
    };
    const detach = pair.context.transceiver.observe(observer);
    const transfer = new ObservedTransfer(pair);
    await transfer.whole();
    expect(heard).toEqual([
      'peer',
      `started context ${1n << 41n}`,
      'asked by generation',
      'arrived context',
      'slice 0 [0, 2) host transferred',
      'slice 1 [2, 4) host transferred',
      'aux transferred',
      'completed',
    ]);
    detach();
    detach();
    await new ObservedTransfer(pair, 2, { rid: (1n << 41n) + 1n }).whole();
    expect(heard).toHaveLength(8);
    expect(pair.context.transceiver.stats().observers).toBe(0);
  });

  it('one that throws hurts neither the transfer nor the other observers, and is counted', async () => {
    const pair = await TransferPair.create();
    const thrower = new Proxy<TransferObserver>(
      {},
      {
        get: () => () => {
          throw new Error('observer');
        },
      },
    );
    let settled = 0;
    pair.context.transceiver.observe(thrower);
    pair.context.transceiver.observe({
      onSettled: () => {
        settled += 1;
      },
    });
    await new ObservedTransfer(pair).whole();
    expect(pair.context.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
    expect(settled).toBe(1);
    expect(pair.context.transceiver.stats().counters['observer_failures']).toBeGreaterThanOrEqual(7);
  });

  it('hear of fallbacks that were there before them', async () => {
    const pair = await TransferPair.create();
    const advised: ((message: string) => void)[] = [];
    pair.context.agent.constructor.prototype.onAdvice = (listener: (message: string) => void) => {
      advised.push(listener);
    };
    try {
      const server = await pair.start('advised');
      advised[0]?.('the kernels are not in this build');
      const heard: unknown[] = [];
      server.transceiver.observe({ onFallback: (notice) => void heard.push(notice) });
      advised[0]?.('no NVLink');
      expect(heard).toEqual([
        { source: 'agent', message: 'the kernels are not in this build' },
        { source: 'agent', message: 'no NVLink' },
      ]);
      expect(server.transceiver.stats().fallbacks).toEqual(heard);
      expect(server.warnings).toEqual(['the kernels are not in this build', 'no NVLink']);
    } finally {
      delete pair.context.agent.constructor.prototype.onAdvice;
    }
  });
});

describe('a trace context on the wire', () => {
  async function asked(traceparent: string, attach: (pair: TransferPair) => void = () => {}): Promise<string[]> {
    const pair = await TransferPair.create();
    attach(pair);
    const transfer = new ObservedTransfer(pair);
    Object.assign(transfer.received.disagg ?? {}, { traceparent });
    await transfer.whole();
    expect(pair.generation.settled.map(({ outcome }) => outcome)).toEqual(['completed']);
    return pair.network.log.flatMap(({ message }) => (message.type === 'REQUEST_DATA' ? [message.traceparent] : []));
  }

  it('is the request’s own where nobody traces', async () => {
    expect(await asked(TRACEPARENT)).toEqual([TRACEPARENT]);
    expect(await asked('')).toEqual(['']);
    expect(await asked('not a trace')).toEqual(['']);
  });

  it('stays the request’s own without a provider: the library makes up no identities', async () => {
    expect(trace.getSpan(context.active())).toBeUndefined();
    const attach = (pair: TransferPair): void =>
      void new KvTracing({ unixNow: () => 1e12 }).attach({ transceiver: pair.generation.transceiver });
    expect(await asked(TRACEPARENT, attach)).toEqual([TRACEPARENT]);
    expect(await asked('', attach)).toEqual(['']);
  });

  it('that is not valid is dropped by whoever reads it, and counted', async () => {
    const pair = await TransferPair.create();
    const seen: unknown[] = [];
    pair.context.transceiver.observe({ onReceiverAsked: ({ trace: asks }) => void seen.push(asks) });
    // A receiver that puts anything there.
    pair.generation.transceiver.observe({ onStarted: () => `00-${'f'.repeat(31)}-1-01` });
    await new ObservedTransfer(pair).whole();
    expect(seen).toEqual([null]);
    expect(pair.context.transceiver.stats().counters).toMatchObject({ 'bad_traceparent:wire': 1 });
  });
});

describe('an observation', () => {
  it('has what the configuration asks for, and no listener when that is nothing', async () => {
    const pair = await TransferPair.create();
    const off = new Observation({ config: { metrics: false, tracing: false } });
    expect(off).toMatchObject({ metrics: null, tracing: null, logging: null });
    off.attach({ transceiver: pair.context.transceiver });
    expect(pair.context.transceiver.stats().observers).toBe(0);
    const on = new Observation({ config: { metrics: true, tracing: true }, logger: SILENT_LOGGER, clock: pair.clock });
    on.attach({ transceiver: pair.context.transceiver });
    expect(pair.context.transceiver.stats().observers).toBe(3);
    on.close();
    expect(pair.context.transceiver.stats().observers).toBe(0);
    expect(on.metrics?.registry.getMetricsAsArray()).toEqual([]);
  });

  it('leaves no listener behind in 1,000 rounds', async () => {
    const pair = await TransferPair.create();
    const on = new Observation({ config: { metrics: true, tracing: true }, logger: SILENT_LOGGER, clock: pair.clock });
    for (let round = 0; round < 1000; round += 1) {
      const detach = on.attach({ transceiver: pair.context.transceiver });
      expect(pair.context.transceiver.stats().observers).toBe(3);
      detach();
    }
    expect(pair.context.transceiver.stats().observers).toBe(0);
    expect(await on.metrics?.registry.metrics()).toContain('kv_transceiver_pinned_requests 0');
  });
});
