import * as read from '../../option-types.js';
import { flag, value } from '../../options.js';

export const DISPATCH_OPTIONS = {
  moves: value('LIST', 'moves (block x layer) of one slice', read.list(read.size), '32,128,512,2k,8k,32k'),
  layers: value('N', 'layers that one block has; moves / layers = blocks of the slice', read.count(1, 512), '32'),
  blocks: value(
    'LIST',
    'blocks of the slices of 64 layers, into equal, larger and smaller blocks; counted in the smaller',
    read.list(read.size),
    '2k',
  ),
  rounds: value('N', 'slices measured per row', read.count(1), '300'),
  agent: value('NAME', 'agent that takes the slices: host or nixl', read.choice('agent', ['host', 'nixl']), 'host'),
  json: value('FILE', 'write the report as JSON; - = standard output', read.text),
  judge: flag('exit code 1 when a figure misses its bound'),
} as const;
