import { LOG_LEVELS } from '../serve/serve-log.js';
import { choice, count, size, text, type ValueReader } from './option-types.js';
import { value } from './options.js';
import { UsageError } from './usage-error.js';

export interface ListenAddress {
  readonly host: string;
  readonly port: number;
}

const address: ValueReader<ListenAddress> = (option, typed) => {
  const match = /^([A-Za-z0-9][A-Za-z0-9.-]*):(\d{1,5})$/.exec(typed);
  const port = Number(match?.[2]);
  if (match === null || port > 65535)
    throw new UsageError(`${option}: '${typed}' is not HOST:PORT; write for example 127.0.0.1:9100`);
  return { host: match[1] as string, port };
};

const level = choice('level', LOG_LEVELS);

const timeoutMs = count(1, 0x7fff_ffff);

export const SERVE_OPTIONS = {
  config: value('FILE', 'YAML of the servers; left out: one context and one generation worker here, pipelined', text),
  engine: value('MODULE', 'file whose default export makes your engine; left out: tiny', text),
  port: value('N', "instead of the file's; 0 = any free port", count(0, 65535)),
  scheduleStyle: value('STYLE', "context_first or generation_first, instead of the file's", text),
  controlHost: value('HOST', 'where workers on other machines reach this process', text),
  maxLive: value('N', 'requests at the servers at once', count(1), '256'),
  maxQueue: value('N', 'requests that may wait; more are answered with 429', count(0), '512'),
  queueTimeoutMs: value('N', 'longest wait in the queue', timeoutMs, '30000'),
  maxBody: value('SIZE', 'bytes of a request body; left out: what the model can use', size),
  maxConnections: value('N', 'clients connected at once', count(1), '4096'),
  requestTimeoutMs: value('N', 'for a client to send its request', timeoutMs, '30000'),
  stallTimeoutMs: value('N', 'for a client to take what was written', timeoutMs, '30000'),
  drainTimeoutMs: value('N', 'after SIGTERM, for requests under way to end', timeoutMs, '60000'),
  metricsAgeMs: value('N', 'for which /metrics hands out what it has collected', count(0, 60_000), '1000'),
  logLevel: value(
    'LEVEL',
    'least level of JSON log lines on standard error; silent: warnings as text',
    level,
    'silent',
  ),
} as const;

export const SERVE_WORKER_OPTIONS = {
  role: value('ROLE', 'context or generation', choice('role', ['context', 'generation'])),
  config: value('FILE', 'the YAML that the front is started with', text),
  listen: value('HOST:PORT', 'where fronts reach this worker', address, '127.0.0.1:0'),
  engine: value('MODULE', 'file whose default export makes your engine; left out: tiny', text),
  drainTimeoutMs: value('N', 'after SIGTERM, for requests under way to end', timeoutMs, '60000'),
  logLevel: value(
    'LEVEL',
    'least level of JSON log lines on standard error; silent: warnings as text',
    level,
    'silent',
  ),
} as const;
