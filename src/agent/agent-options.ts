import type { CacheTransceiverConfig } from '../config/index.js';
import type { AgentOptions } from './native-agent.js';

/**
 * What `createAgent` needs of a configuration: which agent, its bounce arena, and how much of a GPU a copy takes.
 *
 * @example
 * const { config } = resolveCacheTransceiverConfig({ kvCacheBounceSizeMb: 64 }, { nixlAvailable: true });
 * const agent = await createAgent({ ...agentOptions(config), name: 'context' });
 */
export function agentOptions(
  config: Pick<CacheTransceiverConfig, 'backend' | 'kvCacheBounceSizeMb' | 'bounce' | 'copyBlocks'>,
): Pick<AgentOptions, 'kind' | 'bounce' | 'copyBlocks'> {
  const { backend, kvCacheBounceSizeMb, bounce, copyBlocks } = config;
  const kind = backend === 'HOST' ? 'host' : 'nixl';
  if (bounce === null) return { kind, copyBlocks };
  const { streams: _, minDescriptorCount, maxAverageDescriptorSize, ...settings } = bounce;
  // One that was not set must not look as if it were: set ones decide over memory of a GPU too.
  const thresholds = {
    ...(minDescriptorCount === null ? {} : { minDescriptorCount }),
    ...(maxAverageDescriptorSize === null ? {} : { maxAverageDescriptorSize }),
  };
  return { kind, copyBlocks, bounce: { sizeBytes: kvCacheBounceSizeMb * 1024 * 1024, ...settings, ...thresholds } };
}
