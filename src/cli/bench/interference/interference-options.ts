import * as read from '../../option-types.js';
import { flag, type OptionValues, value } from '../../options.js';
import { gpuPair } from '../gpu-pair.js';
import { DENSE_PRESET_NAMES } from '../presets/matrix-widths.js';

export const INTERFERENCE_OPTIONS = {
  model: value(
    'NAME',
    `model whose prefill runs: ${DENSE_PRESET_NAMES.join(', ')}`,
    read.choice('model', DENSE_PRESET_NAMES),
    'llama-3.1-8b',
  ),
  gpus: value('W:R', 'the GPU that computes and writes, and the one that receives', gpuPair, '0:1'),
  chunk: value('SIZE', 'tokens of one prefill chunk', read.size, '2k'),
  chunks: value('N', 'chunks of one measurement, one prompt', read.count(2, 64), '4'),
  rounds: value('N', 'measurements of each variant; all take turns in each', read.count(1), '9'),
  pageBytes: value('SIZE', 'bytes of one page', read.size, '32k'),
  blocks: value('LIST', 'blocks of a p2p copy, each takes one multiprocessor', read.list(read.count(1, 1024)), '16'),
  loads: value(
    'LIST',
    "transfers beside the prefill: own (each chunk's pages, behind its event) or saturating (all the time)",
    read.list(read.choice('load', ['own', 'saturating'])),
    'own,saturating',
  ),
  seed: value('N', 'seed of the page order', read.count(0), '1'),
  json: value('FILE', 'write the report as JSON; - = standard output', read.text),
  judge: flag('exit code 1 when a figure misses its bound'),
} as const;

export type InterferenceOptions = OptionValues<typeof INTERFERENCE_OPTIONS>;
