import { readOptions } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { requireAgent } from '../agent-availability.js';
import { checkJsonTarget } from '../json-file.js';
import { presetNamed } from '../presets/index.js';
import { bytesPerToken } from '../presets/model-preset.js';
import { checkReportFolder } from '../report/report-folder.js';
import { readTrace } from '../request-trace.js';
import { type Shapes, shapesOf } from '../shape/shapes-of.js';
import { describeShape, rankCount, type SideShape } from '../shape/side-shape.js';
import { formatBytes } from '../text-table.js';
import { describePools, type PoolSizes, poolSizes } from './pool-size.js';
import { checkTtftOptions, TTFT_OPTIONS, type TtftOptions, withQuickDefaults } from './ttft-options.js';
import type { WorkerSettings } from './worker-messages.js';
import { planClosedLoop, planTrace, type RequestGroup } from './workload.js';

const DEFAULT_TRACE_CONCURRENCY = 2;
const LAST_PORT = 65535;

/** What the two servers are built from. */
export interface ServersPlan {
  readonly options: ServerOptions;
  readonly concurrency: number;
  readonly shapes: Shapes;
  readonly pools: PoolSizes;
  readonly groups: readonly RequestGroup[];
}

export type ServerOptions = Pick<
  TtftOptions,
  | 'model'
  | 'agent'
  | 'bounceMb'
  | 'linkGbps'
  | 'engine'
  | 'memory'
  | 'gpus'
  | 'path'
  | 'copyBlocks'
  | 'chunk'
  | 'schedule'
  | 'tflops'
  | 'listenPort'
  | 'seed'
>;

/** What one run does. */
export interface TtftPlan extends ServersPlan {
  readonly options: TtftOptions;
}

/** Everything that can be wrong with the arguments is found here, before any process starts. */
export async function planRun(args: readonly string[]): Promise<TtftPlan> {
  const typed = withQuickDefaults(args);
  const options = readOptions(TTFT_OPTIONS, typed);
  checkTtftOptions(options, args);
  const preset = presetNamed(options.model);
  const shapes = shapesOf(options, preset);
  checkPorts(options, shapes);
  checkJsonTarget(options.json);
  checkReportFolder(options.report);
  const concurrency = options.concurrency ?? (options.trace === null ? 1 : DEFAULT_TRACE_CONCURRENCY);
  const groups =
    options.trace === null
      ? planClosedLoop(options, shapes, concurrency)
      : planTrace(options, readTrace(options.trace, options.requests));
  if (groups.length === 0) throw new UsageError('--variants: nothing is left to run; choose another variant');
  const pools = poolSizes(options, concurrency, preset, shapes, groups);
  await requireAgent('--agent', options.agent);
  return { options, concurrency, shapes, pools, groups };
}

/** Ranks listen on ports that follow one another, those of the context server first. */
export function checkPorts({ listenPort }: Pick<TtftOptions, 'listenPort'>, { context, generation }: Shapes): void {
  if (listenPort === null) return;
  const ports = rankCount(context) + rankCount(generation);
  if (listenPort + ports - 1 <= LAST_PORT) return;
  throw new UsageError(
    `--listen-port: ${ports} ranks need the ports ${listenPort} to ${listenPort + ports - 1}; choose at most ${LAST_PORT - ports + 1}`,
  );
}

/** What the server of one side is built from. */
export function workerSettings(
  { options, concurrency, shapes, pools, groups }: ServersPlan,
  role: WorkerSettings['role'],
): WorkerSettings {
  const peer = role === 'context' ? shapes.generation : shapes.context;
  const port = options.listenPort ?? 0;
  return {
    role,
    model: options.model,
    agent: options.agent,
    bounceMb: options.bounceMb,
    linkGbps: linkOf(options),
    engine: options.engine,
    maxPromptTokens: Math.max(...groups.flatMap(({ requests }) => requests.map(({ prompt }) => prompt.tokenCount))),
    ...deviceOf(options, role),
    shape: shapes[role],
    slots: pools[role].slots,
    peerTokensPerBlock: peer.tokensPerBlock,
    chunkTokens: options.chunk,
    schedule: options.schedule,
    tflops: options.tflops,
    concurrency,
    listenPort: role === 'context' || port === 0 ? port : port + rankCount(shapes.context),
    seed: options.seed,
  };
}

/** Only copies between host memories are paced. */
export function linkOf({ agent, memory, linkGbps }: ServerOptions): number | null {
  return agent === 'host' && memory === 'host' ? linkGbps : null;
}

function deviceOf(
  { memory, gpus, path, copyBlocks }: ServerOptions,
  role: WorkerSettings['role'],
): Pick<WorkerSettings, 'device' | 'path' | 'copyBlocks'> {
  if (memory === 'host') return {};
  return {
    device: gpus[role === 'context' ? 0 : 1],
    ...(path === null ? {} : { path }),
    ...(copyBlocks === null ? {} : { copyBlocks }),
  };
}

/** One side as the report shows it. */
export function sideSettings(
  shape: SideShape,
  { slots, bytes }: PoolSizes['context'],
): Readonly<Record<string, unknown>> {
  return { ranks: rankCount(shape), ...shape, slots, poolBytes: bytes };
}

/** The lines above a run. */
export function describeRun(
  { options, groups, shapes, pools, concurrency }: TtftPlan,
  linkGbps: number | null,
): string {
  const preset = presetNamed(options.model);
  const requests = groups.reduce((total, group) => total + group.requests.length, 0);
  const each = rankCount(shapes.context) > 1 ? 'each rank ' : '';
  const speed =
    options.memory === 'device'
      ? `, memory of GPUs ${options.gpus.join(' and ')}`
      : options.agent === 'host'
        ? linkGbps === null
          ? ', not paced'
          : `, ${each}paced to ${linkGbps} Gbit/s`
        : '';
  const prefill =
    options.engine === 'gemm' ? 'prefill products by cuBLAS' : `prefill modelled at ${options.tflops} TFLOP/s`;
  return (
    `${options.model} (${formatBytes(bytesPerToken(preset))} a token), agent ${options.agent}${speed}, chunks of ${options.chunk} tokens, ` +
    `${prefill}; ${requests} requests, ${concurrency} at a time, ${describePools(pools, shapes)}\n` +
    `context: ${describeSide(shapes.context)}; generation: ${describeSide(shapes.generation)}`
  );
}

export function describeSide(shape: SideShape): string {
  const ranks = rankCount(shape);
  return ranks === 1 ? describeShape(shape) : `${describeShape(shape)} (${ranks} ranks in one process)`;
}
