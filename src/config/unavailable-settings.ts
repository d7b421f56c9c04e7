import type { ConfigProblem } from './problem.js';
import type { ParsedConfig } from './schema.js';

interface UnavailableSetting {
  readonly setting: string;
  readonly isAsked: (config: ParsedConfig) => boolean;
  /** Ends with the remedy. */
  readonly reason: string;
}

/**
 * Settings whose capability this build does not have. They are refused, because a setting that is accepted and does nothing is worse
 * than none; the line goes when the capability comes.
 */
const UNAVAILABLE_SETTINGS: readonly UnavailableSetting[] = [
  {
    setting: 'bounce.streams',
    isAsked: ({ bounce }) => bounce !== null && bounce.streams > 1,
    reason: 'this build packs and unpacks on one stream per agent; set bounce.streams to 1',
  },
  {
    setting: 'numTransferThreads',
    isAsked: (config) => config.numTransferThreads > 1,
    reason: 'this build moves data with one thread per agent; set numTransferThreads to 1',
  },
  {
    setting: 'ucx',
    isAsked: ({ ucx }) => ucx.tls !== null || ucx.netDevices !== null || ucx.engineConfig !== null,
    reason:
      'this build does not pass settings on to UCX; remove ucx and set UCX_TLS or UCX_NET_DEVICES in the environment of the process',
  },
];

export function unavailableProblems(config: ParsedConfig): ConfigProblem[] {
  return UNAVAILABLE_SETTINGS.filter(({ isAsked }) => isAsked(config)).map(({ setting, reason }) => ({
    setting,
    message: `${setting}: ${reason}`,
  }));
}
