import * as read from '../../option-types.js';
import { flag, value } from '../../options.js';
import { gpuPair } from '../gpu-pair.js';

export const TRANSFER_OPTIONS = {
  pageBytes: value('LIST', 'bytes of one page', read.list(read.size), '4k,32k,512k'),
  totalBytes: value('SIZE', 'bytes moved per measurement', read.size, '512Mi'),
  rounds: value('N', 'measurements per row; all ways of copying take turns in each', read.count(1), '7'),
  agents: value(
    'LIST',
    'agents to measure; default: host, and nixl where it is there',
    read.list(read.choice('agent', ['host', 'nixl'])),
  ),
  memory: value('KIND', 'where the pages are: host or device', read.choice('memory', ['host', 'device']), 'host'),
  gpus: value('W:R', 'device memory: the GPU of the writer and of the receiver', gpuPair, '0:0'),
  blocks: value(
    'LIST',
    'device memory: blocks of a p2p copy, each takes one multiprocessor',
    read.list(read.count(1, 1024)),
    '16,32',
  ),
  slicePages: value('N', 'device memory and --path bounce: pages of one slice', read.size, '2k'),
  path: value(
    'NAME',
    'bounce: slices through an arena on both sides, instead of the other ways',
    read.choice('path', ['bounce']),
  ),
  arenaMb: value('MIB', "--path bounce: each side's arena", read.count(2, 1 << 20), '512'),
  aborts: value(
    'N',
    'device memory: slices cancelled under way, and as many behind an event; then long runs',
    read.count(0),
    '100',
  ),
  seed: value('N', 'seed of the page order', read.count(0), '1'),
  json: value('FILE', 'write the report as JSON; - = standard output', read.text),
  judge: flag('exit code 1 when a figure misses its bound'),
} as const;
