import { ServeFront } from '../serve/front/serve-front.js';
import { serveLog } from '../serve/serve-log.js';
import { onEndSignals } from './end-signals.js';
import { readOptions } from './options.js';
import { engineModuleOf, readServeConfig } from './serve-config.js';
import { SERVE_OPTIONS } from './serve-options.js';

/** `kv-transceiver serve`: an OpenAI-compatible server in front of context and generation workers. @returns the exit code */
export async function serveCommand(args: readonly string[]): Promise<number> {
  const options = readOptions(SERVE_OPTIONS, args);
  const { maxQueue, maxBody, requestTimeoutMs, stallTimeoutMs, drainTimeoutMs, port } = options;
  const { config, rejection } = await readServeConfig(options.config, options.scheduleStyle, port);
  let ending: () => void = () => {};
  const ended = new Promise<void>((resolve) => {
    ending = resolve;
  });
  let front: ServeFront | null = null;
  onEndSignals(
    // Before it is open there is nothing to finish.
    () => (front === null ? process.exit(143) : ending()),
    () => front?.kill(),
  );
  front = await ServeFront.open({
    ...options,
    config,
    rejection,
    engineModule: engineModuleOf(options.engine),
    maxQueued: maxQueue,
    maxBodyBytes: maxBody,
    headersTimeoutMs: Math.min(10_000, requestTimeoutMs),
    stallLimitMs: stallTimeoutMs,
    log: serveLog(options.logLevel, options.logLevel === 'silent' ? 'kv-transceiver' : 'front'),
  });
  const { context, generation } = config;
  process.stdout.write(
    `kv-transceiver: http://${config.hostname}:${front.port}/v1 serves ${front.engine.model} ` +
      `(${context.instanceCount} context, ${generation.instanceCount} generation)\n`,
  );
  await ended;
  await front.close(drainTimeoutMs);
  return 0;
}
