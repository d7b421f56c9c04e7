import { setTimeout as sleep } from 'node:timers/promises';
import type { TtftSample } from '../output-contract.js';
import type { PreparedRequest, TtftCluster } from './ttft-cluster.js';
import type { PlannedRequest, RequestGroup } from './workload.js';

/** Where a group's requests are run: what `TtftCluster` offers, so that the order of requests can be tested without processes. */
export type RequestRunner = Pick<TtftCluster, 'prepare' | 'measure'>;

/**
 * Runs one group: prompts are made first, then requests go out when they arrive, at most `concurrency` in flight. A request that has to
 * wait for a place waits on its own clock: its TTFT counts from its arrival.
 */
export async function runGroup(
  runner: RequestRunner,
  group: RequestGroup,
  concurrency: number,
  now: () => number,
  onSample: (planned: PlannedRequest, sample: TtftSample) => void,
): Promise<void> {
  const prepared: PreparedRequest[] = [];
  for (const planned of group.requests) prepared.push(await runner.prepare(planned));

  const startedMs = now();
  let next = 0;
  const serve = async (): Promise<void> => {
    for (let request = prepared[next++]; request !== undefined; request = prepared[next++]) {
      const { arrivalMs } = request.planned;
      const arrivedMs = arrivalMs === null ? null : startedMs + arrivalMs;
      if (arrivedMs !== null && arrivedMs > now()) await sleep(arrivedMs - now());
      onSample(request.planned, await runner.measure(request, arrivedMs));
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, prepared.length) }, serve));
}
