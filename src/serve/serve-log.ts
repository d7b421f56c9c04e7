import { createLogger } from '../observe/create-logger.js';
import type { Logger } from '../observe/logger.js';

export const LOG_LEVELS = ['debug', 'info', 'warn', 'error', 'silent'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** Messages of the front's own lines; docs/observability.md has the same ones, and a test compares them. */
export const SERVE_LOG_LINES = {
  answered: 'http request ended',
  refused: 'http request refused',
} as const;

/** What a process of the server tells its operator. */
export interface ServeLog {
  /** Null: no line but warnings, which are plain text. */
  readonly logger: Logger | null;
  warn(message: string): void;
  /** For bugs. */
  error(message: string): void;
}

/**
 * Lines on standard error: JSON from `level` on, or, when it is silent, the text of warnings alone.
 * @param name of the process, in each line
 */
export function serveLog(level: LogLevel, name: string): ServeLog {
  if (level === 'silent') {
    const write = (message: string): void => void process.stderr.write(`${name}: ${message}\n`);
    return { logger: null, warn: write, error: write };
  }
  const logger = createLogger({ level, fields: { process: name } });
  return {
    logger,
    warn: (message) => logger.warn({}, message),
    error: (message) => logger.error({}, message),
  };
}
