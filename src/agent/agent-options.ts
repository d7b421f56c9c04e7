import type { CacheTransceiverConfig } from '../config/index.js';
import type { AgentOptions } from './native-agent.js';

/**
 * What `createAgent` needs of a configuration: which agent, and its bounce arena.
 *
 * @example
 * const { config } = resolveCacheTransceiverConfig({ kvCacheBounceSizeMb: 64 }, { nixlAvailable: true });
 * const agent = await createAgent({ ...agentOptions(config), name: 'context' });
 */
export function agentOptions(
  config: Pick<CacheTransceiverConfig, 'backend' | 'kvCacheBounceSizeMb' | 'bounce'>,
): Pick<AgentOptions, 'kind' | 'bounce'> {
  const { backend, kvCacheBounceSizeMb, bounce } = config;
  const kind = backend === 'HOST' ? 'host' : 'nixl';
  if (bounce === null) return { kind };
  const { streams: _, ...settings } = bounce;
  return { kind, bounce: { sizeBytes: kvCacheBounceSizeMb * 1024 * 1024, ...settings } };
}
