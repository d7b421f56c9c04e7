import { ConfigError } from '../errors.js';
import type { ConfigProblem } from './problem.js';
import type { CacheTransceiverConfig } from './resolve.js';

/**
 * Checks that a context and a generation server can work together, before either is started.
 * @throws ConfigError naming the settings that disagree
 */
export function checkServerPair(context: CacheTransceiverConfig, generation: CacheTransceiverConfig): void {
  const problems: ConfigProblem[] = [];
  const disagree = (setting: string, text: string): void => {
    problems.push({ setting, message: `${setting}: ${text}` });
  };
  if (context.role === 'generation') disagree('role', 'the context server has role generation; set it to context');
  if (generation.role === 'context') disagree('role', 'the generation server has role context; set it to generation');
  if (context.backend !== generation.backend) {
    disagree(
      'backend',
      `the context server uses ${context.backend}, the generation server ${generation.backend}; set both to the same`,
    );
  }
  if ((context.bounce === null) === (generation.bounce === null)) {
    const [ours, theirs] = [context.bounce?.maxChunkSize, generation.bounce?.maxChunkSize];
    if (ours !== theirs) {
      disagree('bounce.maxChunkSize', `${ours} on the context server, ${theirs} on the other; set both to the same`);
    }
  } else {
    disagree('kvCacheBounceSizeMb', 'one server has a bounce arena, the other none; set it on both or on neither');
  }
  if (problems.length === 0) return;
  throw new ConfigError(`servers of a pair disagree: ${problems.map(({ message }) => message).join('; ')}`, {
    details: { problems },
  });
}
