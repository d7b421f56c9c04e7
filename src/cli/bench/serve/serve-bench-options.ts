import { count, positiveNumber } from '../../option-types.js';
import { flag, value } from '../../options.js';

export const SERVE_BENCH_OPTIONS = {
  clients: value('N', 'streaming clients at once', count(1, 4096), '200'),
  seconds: value('N', 'how long they ask', positiveNumber, '120'),
  workers: value('N', 'context workers, and as many generation workers', count(1, 16), '2'),
  leave: value('N', 'of 100 requests, those whose client leaves early', count(0, 100), '15'),
  seed: value('N', 'of prompts, and of who leaves when', count(0), '1'),
  noKill: flag('kill no worker'),
} as const;
