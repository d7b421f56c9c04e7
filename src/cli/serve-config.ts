import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { type DisaggConfig, parseDisaggConfigFile } from '../config/index.js';
import { UsageError } from './usage-error.js';

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
export async function readServeConfig(file: string | null, scheduleStyle: string | null): Promise<DisaggConfig> {
  let text = DEFAULT_CONFIG;
  if (file !== null) {
    try {
      text = await readFile(file, 'utf8');
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      throw new UsageError(`--config: cannot read ${file} (${code}); name a YAML file, see docs/examples`);
    }
  }
  return parseDisaggConfigFile(text, {
    fileName: file ?? 'the built-in configuration',
    ...(scheduleStyle === null ? {} : { scheduleStyle }),
  });
}

/** Workers may run in another folder. */
export function engineModuleOf(engine: string | null): string | null {
  return engine === null ? null : resolve(engine);
}
