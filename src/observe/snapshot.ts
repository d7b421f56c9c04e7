import type { CoordinatorStats } from '../coordinator/coordinator-stats.js';
import type { ExecutorStats } from '../executor/executor-options.js';
import type { TransceiverStats } from '../session/transceiver-stats.js';
import type { MetricKey } from './metric-catalogue.js';
import type { Observed } from './observed.js';

/** What the parts say of themselves at one moment. */
export interface Snapshot {
  readonly transceivers: readonly TransceiverStats[];
  readonly executors: readonly ExecutorStats[];
  readonly coordinators: readonly CoordinatorStats[];
}

export type Series = readonly [Readonly<Record<string, string>>, number];

export function takeSnapshot(observed: Iterable<Observed>): Snapshot {
  const all = [...observed];
  return {
    transceivers: all.flatMap(({ transceiver }) => transceiver?.stats() ?? []),
    executors: all.flatMap(({ executor }) => executor?.stats() ?? []),
    coordinators: all.flatMap(({ coordinator }) => coordinator?.stats() ?? []),
  };
}

/** The series of a gauge, summed over the parts; none where no part has it. */
export function gaugeSeries(key: MetricKey, { transceivers, executors, coordinators }: Snapshot): Series[] {
  const sum = new SeriesSum();
  for (const stats of transceivers) addTransceiver(key, stats, sum);
  for (const { requestsByState } of executors) if (key === 'executorRequests') sum.addStates({}, requestsByState);
  for (const { live, context, generation } of coordinators) {
    if (key === 'coordinatorLive') sum.add({}, live);
    if (key !== 'coordinatorServers') continue;
    for (const [role, servers] of Object.entries({ context, generation }))
      for (const phase of ['ready', 'draining', 'down'])
        sum.add({ role, phase }, servers.filter((server) => server.phase === phase).length);
  }
  return sum.series;
}

function addTransceiver(key: MetricKey, stats: TransceiverStats, sum: SeriesSum): void {
  switch (key) {
    case 'sessions':
      sum.addStates({ side: 'context' }, stats.sendSessionsByState);
      sum.addStates({ side: 'generation' }, stats.receiveSessionsByState);
      break;
    case 'retainedSessions':
      sum.add({}, stats.retainedSessions);
      break;
    case 'pinnedRequests':
      sum.add({}, stats.held);
      break;
    case 'cacheSlots':
      for (const [index, { free, reusable, pinned, offloaded = null }] of stats.cache.entries())
        sum.addStates(
          { group: String(index) },
          { free, reusable, pinned, ...(offloaded === null ? {} : { offloaded }) },
        );
      break;
    case 'cacheSlotCapacity':
      for (const [index, { slotCount }] of stats.cache.entries()) sum.add({ group: String(index) }, slotCount);
      break;
    case 'auxSlots':
      sum.addStates({}, { free: stats.freeAuxSlots, used: stats.auxSlots - stats.freeAuxSlots });
      break;
    case 'arenaBytes':
      if (stats.bounce !== null) {
        const { arenaBytes, arenaUsedBytes, lostBytes } = stats.bounce;
        sum.addStates({}, { free: arenaBytes - arenaUsedBytes, used: arenaUsedBytes - lostBytes, lost: lostBytes });
      }
      break;
    case 'arenaChunks':
      if (stats.bounce !== null) {
        const { chunksGranted: granted, chunksWaiting: waiting, chunksQuarantined: quarantined } = stats.bounce;
        sum.addStates({}, { granted, waiting, quarantined });
      }
      break;
    case 'peers':
      sum.addStates({}, stats.peersByState);
      break;
    case 'earlyRequests':
      sum.add({}, stats.earlyRequests);
      break;
    case 'openReports':
      sum.add({}, stats.openReports);
      break;
    default:
  }
}

class SeriesSum {
  readonly #byLabels = new Map<string, { readonly labels: Readonly<Record<string, string>>; value: number }>();

  get series(): Series[] {
    return [...this.#byLabels.values()].map(({ labels, value }) => [labels, value]);
  }

  add(labels: Readonly<Record<string, string>>, value: number): void {
    const name = JSON.stringify(labels);
    const known = this.#byLabels.get(name);
    if (known === undefined) this.#byLabels.set(name, { labels, value });
    else known.value += value;
  }

  addStates(labels: Readonly<Record<string, string>>, counts: Readonly<Record<string, number>>): void {
    for (const [state, count] of Object.entries(counts)) this.add({ ...labels, state }, count);
  }
}
