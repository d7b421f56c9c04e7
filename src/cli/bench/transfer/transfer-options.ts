import * as read from '../../option-types.js';
import { flag, value } from '../../options.js';

export const TRANSFER_OPTIONS = {
  pageBytes: value('LIST', 'bytes of one page', read.list(read.size), '4k,32k,512k'),
  totalBytes: value('SIZE', 'bytes moved per measurement', read.size, '512Mi'),
  rounds: value('N', 'measurements per row; all ways of copying take turns in each', read.count(1), '7'),
  agents: value(
    'LIST',
    'agents to measure; default: host, and nixl where it is there',
    read.list(read.choice('agent', ['host', 'nixl'])),
  ),
  seed: value('N', 'seed of the page order', read.count(0), '1'),
  json: value('FILE', 'write the report as JSON; - = standard output', read.text),
  judge: flag('exit code 1 when a figure misses its bound'),
} as const;
