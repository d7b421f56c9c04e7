import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { requireAgent } from '../agent-availability.js';
import { checkJsonTarget } from '../json-file.js';
import { checkMemory } from '../memory-guard.js';
import { presetNamed } from '../presets/index.js';
import { bytesPerToken } from '../presets/model-preset.js';
import { checkReportFolder } from '../report/report-folder.js';
import { readTrace } from '../request-trace.js';
import { mixSeed } from '../seeded-random.js';
import { type Shapes, shapesOf } from '../shape/shapes-of.js';
import { stripeTokens } from '../shape/side-shape.js';
import { formatBytes } from '../text-table.js';
import { describePools, type PoolSizes, sidePoolsOf } from '../ttft/pool-size.js';
import { checkPorts, describeSide, type ServerOptions, type ServersPlan, workerSettings } from '../ttft/ttft-plan.js';
import type { WorkerSettings } from '../ttft/worker-messages.js';
import { type RequestGroup, standingCaches, variantsFor } from '../ttft/workload.js';
import { defaultRounds, inRounds } from './rounds.js';
import { type ScaledTrace, scaleTrace } from './scaled-trace.js';
import { checkTraceOptions, TRACE_OPTIONS, TRACE_VARIANTS, type TraceOptions } from './trace-options.js';

/** In a checkout; seen from dist/cli/bench/trace and from src/cli/bench/trace alike. */
const SHIPPED_TRACE = fileURLToPath(new URL('../../../../test/data/traces/conversation-300.jsonl', import.meta.url));
/** How the shipped trace is named in a report: not by where a user keeps his checkout. */
const SHIPPED_TRACE_NAME = 'test/data/traces/conversation-300.jsonl';

/** Pages in host memory and a modelled prefill: what every machine has. */
const ON_HOST = { memory: 'host', engine: 'paced', gpus: [0, 0], path: null, copyBlocks: null } as const;

/** What one run does. */
export interface TracePlan extends ServersPlan {
  readonly options: TraceOptions & ServerOptions;
  /** As a report names it. */
  readonly traceName: string;
  readonly trace: ScaledTrace;
}

/** Everything that can be wrong with the arguments is found here, before any process starts. */
export async function planTraceRun(args: readonly string[]): Promise<TracePlan> {
  const options = { ...readOptions(TRACE_OPTIONS, args), ...ON_HOST };
  checkTraceOptions(options, args);
  const preset = presetNamed(options.model);
  const shapes = shapesOf(options, preset);
  checkPorts(options, shapes);
  checkJsonTarget(options.json);
  checkReportFolder(options.report);
  if (options.trace === null && !existsSync(SHIPPED_TRACE)) {
    throw new UsageError('--trace: an installed package holds no trace; give the path of one (JSON lines)');
  }
  const trace = scaleTrace(
    readTrace(options.trace ?? SHIPPED_TRACE, options.requests),
    options.speedUp,
    options.lengthScale,
  );
  const pools = poolsOf(options, shapes);
  const groups = planGroups(options, shapes, trace);
  await requireAgent('--agent', options.agent);
  const traceName = options.trace ?? SHIPPED_TRACE_NAME;
  return { options, concurrency: options.concurrency, shapes, pools, groups, traceName, trace };
}

/**
 * Each variant replays the same arrivals. The salt keeps one variant's prompts out of the next one's cache hits.
 * @returns one group for each round and variant, the variants in turns
 */
export function planGroups(
  options: Pick<TraceOptions, 'variants' | 'model' | 'seed' | 'rounds' | 'poolTokens' | 'generationReuse'>,
  shapes: Shapes,
  { requests, blockTokens }: ScaledTrace,
): readonly RequestGroup[] {
  const chosen = options.variants ?? TRACE_VARIANTS;
  const caches = standingCaches(options, shapes, options.poolTokens, options.generationReuse === 'on');
  const whole = variantsFor({ ...options, variants: chosen }, 1).map((variant) => {
    const salt = mixSeed(options.seed, TRACE_VARIANTS.indexOf(variant));
    return {
      label: variant,
      requests: requests.map(({ arrivalMs, promptTokens, maxTokens, hashIds }, request) => ({
        variant,
        request,
        seed: salt,
        prompt: { kind: 'trace' as const, salt, hashIds, tokenCount: promptTokens, blockTokens },
        prefixHit: 0,
        contextWarmTokens: 0,
        generationWarmTokens: 0,
        maxTokens,
        arrivalMs,
      })),
    };
  });
  return inRounds(whole, options.rounds ?? defaultRounds(requests.length), caches);
}

/** The server of one side. */
export function traceWorkerSettings(plan: TracePlan, role: WorkerSettings['role']): WorkerSettings {
  const { chunk, tokenBudget, bufferTokens, generationReuse } = plan.options;
  return {
    ...workerSettings(plan, role),
    // A decode step of every request that may be there must fit beside a chunk.
    tokenBudget: tokenBudget ?? Math.max(2, chunk, role === 'generation' ? plan.concurrency + 1 : 0),
    ...(bufferTokens === null ? {} : { maxTokensInBuffer: bufferTokens }),
    ...(role === 'generation' && generationReuse === 'off' ? { reusesPrefixes: false } : {}),
  };
}

/** How many variants there are, and in how many rounds they take turns. */
export function turnsOf({ groups }: Pick<TracePlan, 'groups'>): { readonly variants: number; readonly rounds: number } {
  const planned = groups.flatMap(({ requests }) => requests);
  const variants = new Set(planned.map(({ variant }) => variant)).size;
  return { variants, rounds: new Set(planned.map(({ round = 0 }) => round)).size };
}

/** The lines above a run. */
export function describeTraceRun(plan: TracePlan, linkGbps: number | null): string {
  const { options, shapes, pools, trace, traceName } = plan;
  const { variants, rounds } = turnsOf(plan);
  const lastMs = trace.requests.at(-1)?.arrivalMs ?? 0;
  const tokens = trace.requests.reduce((total, { promptTokens }) => total + promptTokens, 0);
  const speed = options.agent === 'nixl' ? '' : linkGbps === null ? ', not paced' : `, paced to ${linkGbps} Gbit/s`;
  return (
    `${trace.requests.length} requests of ${traceName}, ${options.speedUp} x as fast (arrivals over ${(lastMs / 1000).toFixed(1)} s), ` +
    `lengths x ${options.lengthScale} (${tokens} prompt tokens), ${variants} variants in turns, ${rounds} round${rounds === 1 ? '' : 's'} each\n` +
    `${options.model} (${formatBytes(bytesPerToken(presetNamed(options.model)))} a token), agent ${options.agent}${speed}, ` +
    `chunks of ${options.chunk} tokens, prefill modelled at ${options.tflops} TFLOP/s, ${describePools(pools, shapes)}\n` +
    `context: ${describeSide(shapes.context)}; generation: ${describeSide(shapes.generation)}`
  );
}

function poolsOf(options: TraceOptions, shapes: Shapes): PoolSizes {
  const preset = presetNamed(options.model);
  const side = (role: 'context' | 'generation') => {
    const blocks = Math.floor(options.poolTokens / stripeTokens(shapes[role]));
    if (blocks >= 1) return sidePoolsOf(preset, shapes[role], blocks, options.concurrency);
    throw new UsageError(`--pool-tokens: ${options.poolTokens} tokens are less than one block; raise it`);
  };
  const pools = { context: side('context'), generation: side('generation') };
  const bytes = pools.context.bytes + pools.generation.bytes;
  checkMemory(bytes, describePools(pools, shapes), 'lower --pool-tokens or choose a --model with a smaller cache');
  return pools;
}
