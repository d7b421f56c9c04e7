import type { ConfigProblem, DisaggConfigFile } from '../config/index.js';
import { ConfigError } from '../errors.js';

/** Says where in the file a problem is; null: nobody wrote a file. */
export type Rejection = DisaggConfigFile['rejection'] | null;

const SECTIONS = { context: 'contextServers', generation: 'generationServers' } as const;

/**
 * Runs what reads the settings of one section.
 * @throws what `work` throws; a ConfigError about settings with file, line and key
 */
export async function inSection<T>(
  rejection: Rejection,
  role: keyof typeof SECTIONS,
  work: () => T | Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const problems = sectionProblems(error);
    if (rejection === null || problems === null) throw error;
    throw rejection(problems.map(({ setting, message }) => ({ setting: `${SECTIONS[role]}.${setting}`, message })));
  }
}

/** What an error says of settings, which count from the section on; null: it is about something else. */
export function sectionProblems(error: unknown): readonly ConfigProblem[] | null {
  if (!(error instanceof ConfigError)) return null;
  const { message, details } = error;
  if (Array.isArray(details['problems'])) {
    const problems = details['problems'] as readonly ConfigProblem[];
    return message.startsWith(OF_THE_TRANSCEIVER) ? problems.map(ofTheTransceiver) : problems;
  }
  // Messages of the library begin with the setting that they are about.
  const setting = /^(?:listen|security)(?:\.\w+)+/.exec(message)?.[0];
  if (setting !== undefined)
    return [ofTheTransceiver({ setting, message: message.slice(setting.length).replace(/^:? /, '') })];
  return message.startsWith('schedule ') ? [{ setting: 'schedule', message }] : null;
}

/** How `resolveCacheTransceiverConfig` begins, whose settings count from the map on that it was given. */
const OF_THE_TRANSCEIVER = 'cacheTransceiverConfig: ';

function ofTheTransceiver({ setting, message }: ConfigProblem): ConfigProblem {
  return {
    setting: `cacheTransceiverConfig.${setting}`,
    message: message.startsWith(setting) ? message.slice(setting.length).replace(/^:? /, '') : message,
  };
}
