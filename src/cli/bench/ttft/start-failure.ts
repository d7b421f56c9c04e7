import { UsageError } from '../../usage-error.js';
import type { TtftOptions } from './ttft-options.js';
import { WorkerFailedError } from './worker-failed-error.js';

/** A server that could not start because of an option: the option's error. Anything else is returned as it is. */
export function asUsageError(failure: unknown, options: Pick<TtftOptions, 'agent' | 'listenPort'>): unknown {
  if (!(failure instanceof WorkerFailedError)) return failure;
  const { code, message } = failure.reported;
  if (code === 'ERR_KVT_CAPABILITY') return new UsageError(`--agent ${options.agent}: ${message}`);
  if (options.listenPort !== null && /address already in use|EADDRINUSE|in use/i.test(message)) {
    // Several ranks listen on ports that follow one another; the message says which one it was.
    const named = /:(\d+)\b/.exec(message)?.[1];
    const port = named ?? (failure.role === 'context' ? options.listenPort : options.listenPort + 1);
    return new UsageError(`--listen-port: port ${port} is in use; choose another or leave the option out`);
  }
  return failure;
}
