import * as read from '../../option-types.js';
import { flag, value } from '../../options.js';

export const SCALE_OPTIONS = {
  promptTokens: value('LIST', 'prompt lengths in tokens', read.list(read.size), '8k,32k,128k,256k,1Mi'),
  chunkTokens: value('N', 'tokens of the chunk that is sent, the last of each prompt', read.size, '2k'),
  layers: value('N', 'layers; every second one sees only a window', read.count(2, 512), '64'),
  windowTokens: value('N', 'the window of those layers, in tokens', read.size, '4k'),
  rounds: value('N', 'slices measured per prompt length', read.count(1), '500'),
  json: value('FILE', 'write the report as JSON; - = standard output', read.text),
  judge: flag('exit code 1 when a figure misses its bound'),
} as const;
