import type { ConfigProblem, DisaggServerGroup } from '../config/index.js';
import { snakeCase } from '../config/key-spelling.js';
import { ConfigError } from '../errors.js';

const SPLITS = ['pipelineParallelSize', 'contextParallelSize'] as const;

/**
 * What a file may say and `serve` does not run. Asked before anything is started, and by each worker for itself.
 * @throws ConfigError with `details.problems`
 */
export function checkServable(group: DisaggServerGroup): void {
  const problems: ConfigProblem[] = SPLITS.filter((key) => group[key] !== 1).map((setting) => ({
    setting,
    message: `is ${group[setting]}; serve runs tensor parallel ranks alone, set it to 1`,
  }));
  if (group.enableAttentionDp)
    problems.push({
      setting: 'enableAttentionDp',
      message: 'is true; serve runs tensor parallel ranks alone, set it to false',
    });
  if (problems.length === 0) return;
  const texts = problems.map(({ setting, message }) => `${group.role}_servers.${snakeCase(setting)} ${message}`);
  throw new ConfigError(texts.join('\n'), { details: { problems } });
}
