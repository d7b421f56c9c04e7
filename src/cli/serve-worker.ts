import { inSection } from '../serve/located-error.js';
import { serveLog } from '../serve/serve-log.js';
import { ServeWorker } from '../serve/worker/serve-worker.js';
import { onEndSignals } from './end-signals.js';
import { readOptions } from './options.js';
import { engineModuleOf, readServeConfig } from './serve-config.js';
import { SERVE_WORKER_OPTIONS } from './serve-options.js';
import { UsageError } from './usage-error.js';

/** How long the last transfers and frames may take once no request is left. */
const CLOSE_MS = 2000;

/** `kv-transceiver serve worker`: one worker that fronts reach by its address. @returns the exit code */
export async function serveWorkerCommand(args: readonly string[]): Promise<number> {
  const { role, config, listen, engine, drainTimeoutMs, logLevel } = readOptions(SERVE_WORKER_OPTIONS, args);
  if (role === null) throw new UsageError('--role: say whether this is a context or a generation worker');
  const { config: parsed, rejection } = await readServeConfig(config, null);
  let ending: () => void = () => {};
  const ended = new Promise<void>((resolve) => {
    ending = resolve;
  });
  onEndSignals(ending, () => {});
  const name = `${role}-${listen.host}:${listen.port}`;
  const settings = {
    role,
    name,
    scheduleStyle: parsed.scheduleStyle,
    group: parsed[role],
    engineModule: engineModuleOf(engine),
    listen,
    logLevel,
  };
  const log = serveLog(logLevel, logLevel === 'silent' ? 'kv-transceiver' : name);
  const worker = await inSection(rejection, role, () => ServeWorker.open(settings, log));
  process.stdout.write(`kv-transceiver: ${role} worker at ${worker.endpoint.replace('tcp://', '')}\n`);
  await ended;
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([
    worker.drain(),
    new Promise((resolve) => {
      timer = setTimeout(resolve, drainTimeoutMs);
    }),
  ]);
  clearTimeout(timer);
  await worker.close(CLOSE_MS);
  return 0;
}
