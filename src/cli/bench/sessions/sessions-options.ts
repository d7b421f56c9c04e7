import * as read from '../../option-types.js';
import { flag, value } from '../../options.js';

export const SESSIONS_OPTIONS = {
  sessions: value('LIST', 'requests that are live at once', read.list(read.count(1, 100_000)), '1,100,1000,10000'),
  rate: value('N', 'requests a second that end, each replaced by a new one', read.count(1, 10_000), '200'),
  concurrency: value('N', 'requests in flight in the executor rows', read.count(1, 10_000), '128'),
  seconds: value('N', 'how long each row is measured', read.count(1, 3600), '5'),
  json: value('FILE', 'write the report as JSON; - = standard output', read.text),
  judge: flag('exit code 1 when a figure misses its bound'),
} as const;
