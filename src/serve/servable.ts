import type { DisaggServerGroup } from '../config/index.js';
import { ConfigError } from '../errors.js';

/**
 * What a file may say and `serve` does not run. Asked before anything is started, and by each worker for itself.
 * @throws ConfigError naming the settings
 */
export function checkServable(group: DisaggServerGroup): void {
  const { role, pipelineParallelSize, contextParallelSize, enableAttentionDp } = group;
  if (pipelineParallelSize === 1 && contextParallelSize === 1 && !enableAttentionDp) return;
  throw new ConfigError(
    `${role}_servers: serve runs tensor parallel ranks; set pipeline_parallel_size and context_parallel_size to 1 and enable_attention_dp to false`,
  );
}
