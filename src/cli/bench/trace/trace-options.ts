import * as read from '../../option-types.js';
import { type OptionValues, value } from '../../options.js';
import { UsageError } from '../../usage-error.js';
import type { TtftVariant } from '../output-contract.js';
import { presetNamed } from '../presets/index.js';
import { TRACE_BLOCK_TOKENS } from '../request-trace.js';
import { checkBlockSize, TTFT_OPTIONS } from '../ttft/ttft-options.js';

/** Nothing is sent that a server would have to hold already, so that there is no `ideal`. */
export const TRACE_VARIANTS: readonly TtftVariant[] = ['monolithic', 'pipelined', 'pipelined-early-prefix'];

const onOff = read.choice('setting', ['on', 'off']);

const {
  promptTokens: _promptTokens,
  prefixHit: _prefixHit,
  memory: _memory,
  gpus: _gpus,
  path: _path,
  copyBlocks: _copyBlocks,
  engine: _engine,
  speed: _speed,
  judge: _judge,
  quick: _quick,
  ...SHARED
} = TTFT_OPTIONS;

export const TRACE_OPTIONS = {
  ...SHARED,
  trace: value(
    'FILE',
    'request trace: JSON lines of timestamp, input_length, output_length, hash_ids; default: the 300 requests in test/data/traces of a checkout',
    read.text,
  ),
  requests: value('N', 'how many requests of the trace, from its start', read.count(1), '100'),
  speedUp: value('X', 'replay the arrivals this many times as fast', read.positiveNumber, '10'),
  lengthScale: value(
    'X',
    'multiply input and output lengths and the tokens of a hash id; a fraction, as in 1/16, or 1',
    lengthScale,
    '1/16',
  ),
  model: { ...SHARED.model, fallback: 'llama-3.3-70b-tp8-rank' },
  chunk: { ...SHARED.chunk, fallback: '128' },
  linkGbps: { ...SHARED.linkGbps, fallback: '8' },
  tflops: { ...SHARED.tflops, fallback: '800' },
  poolTokens: value(
    'SIZE',
    'tokens each server has pages for; a request that can never fit is refused',
    read.size,
    '64k',
  ),
  concurrency: value(
    'N',
    'requests that both servers have at once; others wait at the coordinator',
    read.count(1, 4096),
    '256',
  ),
  maxQueued: value(
    'N',
    'requests that may wait at the coordinator; more are refused; default: no limit',
    read.count(0),
  ),
  tokenBudget: value('SIZE', 'most tokens of one step of a server; default: the chunk', read.size),
  bufferTokens: value(
    'SIZE',
    'most prompt tokens that the generation server receives at once; default: no limit',
    read.size,
  ),
  generationReuse: value(
    'on|off',
    'whether the generation server finds earlier prompts in its cache; off: as one of many, which has not seen them',
    onOff,
    'off',
  ),
  rounds: value(
    'N',
    'pieces of the trace in which the variants take turns; 1: each replays all of it at once; default: 3, or 6 from 300 requests on',
    read.count(1, 1000),
  ),
  sloTtftMs: value('MS', 'a request is good when its first token comes within this', read.positiveNumber, '500'),
  sloTbtMs: value('MS', 'and the mean time between its tokens is at most this', read.positiveNumber, '50'),
  variants: value(
    'LIST',
    `variants to run, in turns over the same arrivals: ${TRACE_VARIANTS.join(', ')}`,
    read.list(read.choice('variant', TRACE_VARIANTS)),
  ),
} as const;

export type TraceOptions = OptionValues<typeof TRACE_OPTIONS>;

/** A whole number of tokens must stand for each hash id: prompts that shared blocks have to share them still. */
function lengthScale(option: string, text: string): number {
  const match = /^(\d+)\s*\/\s*(\d+)$/.exec(text.trim());
  const scale = match === null ? read.positiveNumber(option, text) : Number(match[1]) / Number(match[2]);
  const tokens = scale * TRACE_BLOCK_TOKENS;
  if (Number.isInteger(tokens) && tokens >= 1 && tokens <= 2 ** 16) return scale;
  throw new UsageError(
    `${option}: '${text}' makes ${Number.isFinite(tokens) ? tokens : 'no number of'} tokens of the ${TRACE_BLOCK_TOKENS} of a hash id, ` +
      'which must be a whole number from 1 to 65536; write for example 1/16, 1/32 or 1',
  );
}

/** @throws UsageError that names the option to change */
export function checkTraceOptions(options: TraceOptions, typed: readonly string[]): void {
  const { blockSize, generationBlockSize, agent, linkGbps, tokenBudget, model, variants } = options;
  checkBlockSize('--block-size', blockSize);
  if (generationBlockSize !== null) checkBlockSize('--generation-block-size', generationBlockSize);
  const isTyped = (name: string): boolean => typed.some((arg) => arg === name || arg.startsWith(`${name}=`));
  if (agent === 'nixl' && isTyped('--link-gbps') && linkGbps !== null) {
    throw new UsageError('--link-gbps: only the host agent can be paced; leave it out with --agent nixl');
  }
  // One token for a decode step and one for a prompt.
  if (tokenBudget !== null && tokenBudget < 2) throw new UsageError('--token-budget: must be at least 2');
  if (presetNamed(model).hybrid !== null && variants?.includes('pipelined-early-prefix') === true) {
    throw new UsageError(
      `--variants: ${model} has recurrent state, so that no prefix is reused; leave pipelined-early-prefix out`,
    );
  }
}
