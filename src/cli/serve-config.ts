import { resolve } from 'node:path';
import { type DisaggConfig, parseDisaggConfigFile, readDisaggConfigFile } from '../config/index.js';
import type { Rejection } from '../serve/located-error.js';
import { readConfigText } from './config-text.js';

/** What `serve` runs without a file. */
const DEFAULT_CONFIG = `
schedule_style: generation_first
cache_transceiver_config: { backend: HOST }
context_servers:
  num_instances: 1
  cache_transceiver_config: { enable_pipelined_transfer: true }
generation_servers: { num_instances: 1 }
`;

/** @throws UsageError for a file that cannot be read, ConfigError with every problem in it */
export async function readServeConfig(
  file: string | null,
  scheduleStyle: string | null,
  port: number | null = null,
): Promise<{ readonly config: DisaggConfig; readonly rejection: Rejection }> {
  const typed = { ...(scheduleStyle === null ? {} : { scheduleStyle }), ...(port === null ? {} : { port }) };
  if (file === null)
    return { config: parseDisaggConfigFile(DEFAULT_CONFIG, { fileName: 'without a file', ...typed }), rejection: null };
  return readDisaggConfigFile(await readConfigText(file), { fileName: file, ...typed });
}

/** Workers may run in another folder. */
export function engineModuleOf(engine: string | null): string | null {
  return engine === null ? null : resolve(engine);
}
