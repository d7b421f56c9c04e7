import { readdirSync } from 'node:fs';
import process from 'node:process';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { SystemClock } from '../../../src/clock.js';
import type { FaultServer } from './fault-server.js';
import type { MemorySample, OutcomeNews, ServerNews, StreamReport, StreamSettings } from './server-messages.js';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/**
 * Runs requests of consecutive ids, `concurrency` at a time, until all have ended.
 * @param take sets who hears the server's news; null gives it back
 */
export async function runStream(
  server: FaultServer,
  settings: StreamSettings,
  take: (listener: ((news: ServerNews) => void) | null) => void,
): Promise<StreamReport> {
  const { count, concurrency, promptTokens, chunkTokens, endpoint, sampleEvery } = settings;
  const clock = new SystemClock();
  const startedAtMs = clock.now();
  const firstRid = BigInt(settings.firstRid);
  const samples: MemorySample[] = [sampleMemory(0)];
  let started = 0;
  let completed = 0;
  let failed = 0;
  let firstError: string | null = null;
  let wrongBytes = 0;
  let bytesChecked = 0;
  await new Promise<void>((resolve, reject) => {
    const startNext = (): void => {
      if (started === count) return;
      const rid = (firstRid + BigInt(started++)).toString();
      if (endpoint === '') server.prefill(rid, promptTokens, chunkTokens, null).catch(reject);
      else if (!server.receive(rid, promptTokens, endpoint)) reject(new Error(`no pages for request ${rid}`));
    };
    const onOutcome = (news: OutcomeNews): void => {
      if (news.outcome === 'completed') completed += 1;
      else {
        failed += 1;
        firstError ??= `${news.rid}: ${news.message}`;
      }
      wrongBytes += news.wrongBytes;
      bytesChecked += news.bytesChecked;
      const ended = completed + failed;
      if (ended % sampleEvery === 0) samples.push(sampleMemory(ended));
      if (ended === count) resolve();
      else startNext();
    };
    take((news) => {
      if (news.kind === 'outcome') onOutcome(news);
    });
    for (let i = 0; i < concurrency; i++) startNext();
  }).finally(() => take(null));
  return {
    completed,
    failed,
    firstError,
    wrongBytes,
    bytesChecked,
    durationMs: clock.now() - startedAtMs,
    samples,
  };
}

function sampleMemory(requests: number): MemorySample {
  collectGarbage();
  const { rss, heapUsed, external } = process.memoryUsage();
  return {
    requests,
    rssBytes: rss,
    heapBytes: heapUsed,
    externalBytes: external,
    descriptors: readdirSync('/proc/self/fd').length,
    // A turn of the event loop that is due is no handle: the watch for notes has one now and then.
    resources: process.getActiveResourcesInfo().filter((type) => type !== 'Immediate').length,
  };
}
