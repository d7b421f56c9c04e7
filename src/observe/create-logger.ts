import type { DestinationStream } from 'pino';
import { pinoLibrary } from './libraries.js';
import type { LogFields, Logger } from './logger.js';

/** What never leaves in a line, whoever hands it in: keys, what opens memory, what users wrote. */
const SECRETS = [
  'secretKey',
  'secretKeyFile',
  'agentMetadata',
  'metadata',
  'promptTokens',
  'outputTokens',
  'firstTokens',
  'tokens',
  'ticket',
];

/** How `createLogger` writes. */
export interface LoggerOptions {
  /** Least level that is written. Default `info`. */
  readonly level?: 'debug' | 'info' | 'warn' | 'error' | 'silent';
  /** Fields of every line. Default: none. */
  readonly fields?: LogFields;
  /** Default: standard error, without waiting for it. */
  readonly stream?: DestinationStream;
}

/**
 * A pino logger: one JSON object a line, with `level` as a word and `time` in ISO 8601.
 *
 * @example
 * const logger = createLogger({ level: 'info', fields: { instance: 'context-0' } });
 * const logging = new KvLogging({ logger, clock });
 */
export function createLogger(options: LoggerOptions = {}): Logger {
  const { level = 'info', fields = {}, stream } = options;
  const { pino, destination, stdTimeFunctions } = pinoLibrary();
  return pino(
    {
      level,
      base: fields,
      timestamp: stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: { paths: SECRETS.flatMap((name) => [name, `*.${name}`]), censor: '[redacted]' },
    },
    // A pipe that nobody reads must not hold up the event loop (I6).
    stream ?? destination({ fd: 2, sync: false }),
  );
}
