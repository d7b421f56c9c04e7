import * as read from '../../option-types.js';
import { flag, type OptionValues, value } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import { gpuPair } from '../gpu-pair.js';
import type { TtftVariant } from '../output-contract.js';
import { PRESET_NAMES, presetNamed } from '../presets/index.js';
import { DENSE_PRESET_NAMES } from '../presets/matrix-widths.js';
import { SHAPE_OPTIONS } from '../shape/shape-options.js';

export const TTFT_VARIANTS: readonly TtftVariant[] = ['monolithic', 'pipelined', 'pipelined-early-prefix', 'ideal'];

/** The range that native/core/link_pacer.h takes. */
const LINK_GBPS = read.numberBetween(0.001, 1e6);

export const TTFT_OPTIONS = {
  model: value(
    'NAME',
    `model whose shape is used: ${PRESET_NAMES.join(', ')}`,
    read.choice('model', PRESET_NAMES),
    'llama-3.1-8b',
  ),
  promptTokens: value('LIST', 'prompt lengths', read.list(read.size), '4k,8k'),
  chunk: value('SIZE', 'tokens of one prefill chunk; need not divide by the block size', read.size, '1k'),
  blockSize: value('SIZE', 'tokens per block', read.size, '32'),
  ...SHAPE_OPTIONS,
  prefixHit: value(
    'LIST',
    'shares of the prompt that the context server finds in its cache',
    read.list(read.share),
    '0',
  ),
  linkGbps: value(
    'N',
    "pace each rank's host agent to one network card's speed; `off` = memory speed",
    linkSpeed,
    '25',
  ),
  requests: value(
    'N',
    'measured requests per variant and prompt length; with --trace: how many of its requests',
    read.count(1),
    '3',
  ),
  warmUp: value(
    'N',
    'short requests before the measured ones; a few hundred until all code is compiled, as in a server that runs',
    read.count(1),
    '1',
  ),
  variants: value(
    'LIST',
    `variants to run: ${TTFT_VARIANTS.join(', ')}`,
    read.list(read.choice('variant', TTFT_VARIANTS)),
  ),
  agent: value(
    'NAME',
    'what moves the pages: host (shared memory) or nixl',
    read.choice('agent', ['host', 'nixl']),
    'host',
  ),
  bounceMb: value(
    'MIB',
    'send every slice packed, through a bounce arena of so many MiB on each rank; default: no arena',
    read.count(1, 1 << 20),
  ),
  memory: value('KIND', 'where the pages are: host or device', read.choice('memory', ['host', 'device']), 'host'),
  gpus: value('C:G', 'device memory: the GPU of the context and of the generation server', gpuPair, '0:0'),
  path: value(
    'NAME',
    'device memory: the one path to take; default: the cheapest',
    read.choice('path', ['p2p', 'rdma']),
  ),
  copyBlocks: value('N', 'device memory: multiprocessors of a p2p copy; default 16', read.count(1, 1024)),
  engine: value(
    'NAME',
    'what computes the prefill: paced (its modelled time passes) or gemm (its matrix products on a GPU, by cuBLAS)',
    read.choice('engine', ['paced', 'gemm']),
    'paced',
  ),
  schedule: value(
    'NAME',
    'plain: a step is scheduled when the one before it is read; overlap: while it runs',
    read.choice('schedule', ['plain', 'overlap']),
    'plain',
  ),
  concurrency: value('N', 'requests in flight at once; default 1, with --trace 2', read.count(1, 64)),
  trace: value(
    'FILE',
    'replay arrivals, lengths and prefix sharing of a request trace instead of --prompt-tokens',
    read.text,
  ),
  speed: value('X', 'replay the trace this many times as fast', read.positiveNumber, '1'),
  tflops: value(
    'N',
    'modelled speed of the prefill, all ranks together, in 1e12 operations a second',
    read.positiveNumber,
    '200',
  ),
  poolTokens: value('SIZE', 'prompt tokens each server has pages for; default: what the run needs', read.size),
  poolLayout: value(
    'NAME',
    'where the layers of a page lie: one pool per layer (per-layer), or one slot for all layers (per-block)',
    read.choice('pool layout', ['per-layer', 'per-block']),
    'per-layer',
  ),
  listenPort: value(
    'PORT',
    'control port of the first context rank; the other ranks and then the generation ranks take those that follow; default: free ports',
    read.count(1, 65534),
  ),
  seed: value('N', 'seed of prompts and page order', read.count(0), '1'),
  json: value('FILE', 'write the figures as JSON; - = standard output', read.text),
  report: value('DIR', 'write report.html, timeline.json (for Perfetto) and figures.json into this folder', read.text),
  judge: flag('exit code 1 also when a figure misses its bound'),
  quick: flag('one small run of each variant, to see that everything works'),
} as const;

export type TtftOptions = OptionValues<typeof TTFT_OPTIONS>;

function linkSpeed(option: string, text: string): number | null {
  return text === 'off' ? null : LINK_GBPS(option, text);
}

/** Shortest prompts that still have several chunks; seconds, not minutes. */
const QUICK = { promptTokens: '2k', chunk: '512', requests: '1' } as const;

/** `--quick` changes defaults only: what the user typed stays. */
export function withQuickDefaults(args: readonly string[]): readonly string[] {
  if (!args.includes('--quick')) return args;
  const typed = (flagText: string): boolean => args.some((arg) => arg === flagText || arg.startsWith(`${flagText}=`));
  const added: string[] = [];
  if (!typed('--prompt-tokens') && !typed('--trace')) added.push('--prompt-tokens', QUICK.promptTokens);
  if (!typed('--chunk')) added.push('--chunk', QUICK.chunk);
  if (!typed('--requests')) added.push('--requests', QUICK.requests);
  return [...args, ...added];
}

/**
 * What no single option's reader can see.
 * @throws UsageError that names the option to change
 */
export function checkTtftOptions(options: TtftOptions, typed: readonly string[]): void {
  const isTyped = (name: string): boolean => typed.some((arg) => arg === name || arg.startsWith(`${name}=`));
  const { blockSize, generationBlockSize, poolTokens, trace } = options;
  checkBlockSize('--block-size', blockSize);
  if (generationBlockSize !== null) checkBlockSize('--generation-block-size', generationBlockSize);
  if (trace !== null && isTyped('--prompt-tokens')) {
    throw new UsageError(
      '--prompt-tokens: the trace says how long prompts are; leave out one of --trace, --prompt-tokens',
    );
  }
  if (trace !== null && isTyped('--prefix-hit')) {
    throw new UsageError('--prefix-hit: the trace says what prompts share; leave out one of --trace, --prefix-hit');
  }
  if (trace === null && isTyped('--speed')) throw new UsageError('--speed: needs --trace');
  if (options.bounceMb !== null && options.path !== null) {
    throw new UsageError('--path: every slice is bounced with --bounce-mb; leave out one of them');
  }
  if (options.bounceMb !== null && options.memory === 'device' && options.agent === 'host') {
    throw new UsageError('--bounce-mb: pages on a GPU are bounced by NIXL; add --agent nixl');
  }
  if (options.agent === 'nixl' && isTyped('--link-gbps') && options.linkGbps !== null) {
    throw new UsageError('--link-gbps: only the host agent can be paced; leave it out with --agent nixl');
  }
  if (
    options.variants?.includes('pipelined-early-prefix') === true &&
    !options.prefixHit.some((hit) => hit > 0) &&
    trace === null
  ) {
    throw new UsageError('--variants: pipelined-early-prefix needs a reused prefix; add --prefix-hit 0.5');
  }
  checkGpu(options, isTyped);
  const longest = trace === null ? Math.max(...options.promptTokens) : 0;
  if (poolTokens !== null && longest > poolTokens) {
    throw new UsageError(
      `--prompt-tokens: ${longest} tokens do not fit the pool of ${poolTokens} (--pool-tokens); shorten the prompt or raise --pool-tokens`,
    );
  }
  if (presetNamed(options.model).hybrid !== null) checkHybrid(options);
}

function checkGpu(options: TtftOptions, isTyped: (name: string) => boolean): void {
  const { engine, memory, model, contextTp, contextPp, contextCp } = options;
  if (memory === 'host') {
    const idle = ['--gpus', '--path', '--copy-blocks'].find(isTyped);
    if (idle !== undefined) throw new UsageError(`${idle}: needs --memory device`);
    if (engine === 'gemm') throw new UsageError('--engine: gemm writes its pages on a GPU; add --memory device');
    return;
  }
  if (isTyped('--link-gbps') && options.linkGbps !== null) {
    throw new UsageError(
      '--link-gbps: only copies between host memories can be paced; leave it out with --memory device',
    );
  }
  if (engine === 'paced') return;
  if (!DENSE_PRESET_NAMES.includes(model)) {
    throw new UsageError(`--engine: gemm knows the matrices of ${DENSE_PRESET_NAMES.join(', ')}, not of ${model}`);
  }
  if (contextTp !== 1 || contextPp.length > 1 || contextPp[0] !== 1 || contextCp !== 1) {
    throw new UsageError('--engine: gemm computes one rank; leave --context-tp, --context-pp and --context-cp out');
  }
}

/** Powers of two: of two sizes one then always divides the other. */
export function checkBlockSize(option: string, tokens: number): void {
  if ((tokens & (tokens - 1)) === 0 && tokens <= 1024) return;
  throw new UsageError(`${option}: ${tokens} is not a power of two up to 1024`);
}

function checkHybrid({ model, prefixHit, variants }: TtftOptions): void {
  const why = `${model} has recurrent state, so that no prefix is reused`;
  if (prefixHit.some((hit) => hit > 0)) throw new UsageError(`--prefix-hit: ${why}; leave the option out`);
  const reusing = variants?.find((variant) => variant === 'ideal' || variant === 'pipelined-early-prefix');
  if (reusing !== undefined) throw new UsageError(`--variants: ${why}; leave ${reusing} out`);
}
