import { collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { WorkerRankStats } from './worker-rank.js';

/** Where a process's metrics come from: a registry of prom-client is one. */
export interface MetricsSource {
  /** Text of the Prometheus format. */
  metrics(): Promise<string>;
}

/** What a worker shows of itself: the process, and what its ranks hold. */
export function workerMetrics(ranks: () => readonly WorkerRankStats[], sessions: () => number): MetricsSource {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const gauge = (name: string, help: string, read: (rank: WorkerRankStats) => number): void => {
    new Gauge({
      name,
      help,
      registers: [registry],
      labelNames: ['rank'],
      collect() {
        for (const [rank, stats] of ranks().entries()) this.set({ rank: String(rank) }, read(stats));
      },
    });
  };
  gauge('kvt_worker_requests_live', 'Requests that a rank works on', ({ executor }) => executor.live);
  gauge('kvt_worker_steps', 'Forward steps since the start', ({ executor }) => executor.steps);
  gauge('kvt_worker_send_sessions', 'Requests being sent', ({ transceiver }) => transceiver.sendSessions);
  gauge('kvt_worker_receive_sessions', 'Requests being received', ({ transceiver }) => transceiver.receiveSessions);
  gauge('kvt_worker_held_requests', 'Requests whose pages a transfer may touch', ({ transceiver }) => transceiver.held);
  gauge('kvt_worker_peers', 'Ranks of other servers that are known', ({ transceiver }) => transceiver.peers.length);
  gauge('kvt_worker_pinned_slots', 'Pages held for transfers', ({ cache }) => sum(cache.map(({ pinned }) => pinned)));
  gauge('kvt_worker_owned_slots', 'Pages that belong to requests', ({ cache }) =>
    sum(cache.map(({ slotCount, free, reusable }) => slotCount - free - reusable)),
  );
  new Gauge({
    name: 'kvt_worker_fronts',
    help: 'Front processes that this worker serves',
    registers: [registry],
    collect() {
      this.set(sessions());
    },
  });
  return {
    metrics: () => {
      // Only where the process was started with --expose-gc: figures of the heap then show what is in use.
      globalThis.gc?.();
      return registry.metrics();
    },
  };
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
