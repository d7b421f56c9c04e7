import { SystemClock } from '../../../clock.js';
import { parseDisaggConfigFile, resolveCacheTransceiverConfig } from '../../../config/index.js';
import { InternalError } from '../../../errors.js';
import { createRequest } from '../../../executor/create-request.js';
import type { SamplingParams } from '../../../executor/request.js';
import { Observation } from '../../../observe/observation.js';
import type { ServeRank } from '../../../serve/engine/serve-engine.js';
import { tinyServeEngine } from '../../../serve/engine/tiny-serve-engine.js';
import { WorkerRank } from '../../../serve/worker/worker-rank.js';

/** One question, as tokens. */
export interface ReferenceRequest {
  readonly promptTokens: Uint32Array;
  readonly maxTokens: number;
  readonly sampling: SamplingParams;
  readonly ignoreEnd: boolean;
}

/**
 * What the tiny engine answers when one server does it all and nothing is transferred, one request after another.
 * @param settings the map `engine` of the YAML that the other servers are started with
 */
export async function referenceAnswers(
  settings: Readonly<Record<string, unknown>>,
  requests: readonly ReferenceRequest[],
): Promise<readonly (readonly number[])[]> {
  const engine = tinyServeEngine(settings);
  const [model] = engine.ranks({ role: 'context', tensorParallelSize: 1 });
  const { context: group } = parseDisaggConfigFile('context_servers: {}\ngeneration_servers: {}');
  const rank = await WorkerRank.open({
    settings: {
      role: 'context',
      name: 'reference',
      scheduleStyle: 'context_first',
      group,
      engineModule: null,
      listen: null,
      logLevel: 'silent',
    },
    config: resolveCacheTransceiverConfig({ backend: 'HOST' }),
    model: model as ServeRank,
    tokensPerBlock: engine.tokensPerBlock,
    rank: 0,
    clock: new SystemClock(),
    observation: new Observation(),
    logging: null,
    log: { warn: () => {}, info: () => {} },
  });
  rank.start([rank.endpoint], null);
  try {
    const answers: (readonly number[])[] = [];
    for (const [id, { promptTokens, maxTokens, sampling, ignoreEnd }] of requests.entries()) {
      const request = createRequest({ id, promptTokens, maxTokens, sampling });
      await new Promise<void>((resolve) => rank.executor.submit(request, { onFinished: () => resolve() }));
      if (request.error !== null) throw new InternalError('the reference run failed', { cause: request.error });
      const end = ignoreEnd ? -1 : request.outputTokens.findIndex((token) => engine.codec.endTokens.has(token));
      answers.push(end < 0 ? [...request.outputTokens] : request.outputTokens.slice(0, end + 1));
    }
    return answers;
  } finally {
    await rank.close(1000);
  }
}
