import type { TransceiverLog } from '../transceiver.js';

/** Values of a log line. Never keys, metadata of agents, tokens or page content. */
export type LogFields = Readonly<Record<string, string | number | boolean | null>>;

/**
 * What the library needs of a logger; `createLogger` makes one with pino, and a pino logger is one. Levels: `error` a fault of this
 * package or a server that stops serving; `warn` a failed request, a fallback, refused frames; `info` an ordinary end; `debug` peers that come.
 */
export interface Logger {
  debug(fields: LogFields, message: string): void;
  info(fields: LogFields, message: string): void;
  warn(fields: LogFields, message: string): void;
  error(fields: LogFields, message: string): void;
  /** A logger whose lines all carry `fields`. */
  child(fields: LogFields): Logger;
}

/** The default: says nothing. */
export const SILENT_LOGGER: Logger = Object.freeze({
  debug: () => {},
  info: () => {},
  warn: () => {},
  error: () => {},
  child: () => SILENT_LOGGER,
});

/** A logger where a transceiver wants its operator's log (`OpenTransceiverOptions.log`). */
export function transceiverLog(logger: Logger): TransceiverLog {
  return {
    warn: (message) => logger.warn({}, message),
    info: (message) => logger.info({}, message),
  };
}
