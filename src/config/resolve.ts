import type { z } from 'zod';
import { ConfigError } from '../errors.js';
import type { ConfigFacts, ServerRole } from './facts.js';
import { KeySpelling } from './key-spelling.js';
import type { ConfigProblem, ConfigWarning } from './problem.js';
import { ruleProblems, ruleWarnings } from './rules.js';
import { bounceSchema, cacheTransceiverSchema, type ParsedConfig } from './schema.js';
import { isMap, nameSettings, settingPaths, shownValue } from './setting-keys.js';
import { unavailableProblems } from './unavailable-settings.js';

const DEFAULT_NO_PROGRESS_TIMEOUT_MS = 30_000;
/** In messages: the settings, and what others call the facts. */
const SPELLED_NAMES = [
  ...settingPaths().flatMap((path) => path.split('.')),
  'scheduleStyle',
  'enableChunkedPrefill',
  'beamWidth',
];

/** Every setting with its final value. Milliseconds, bytes and tokens as their names say; null = not set. */
export interface CacheTransceiverConfig
  extends DeepReadonly<Omit<ParsedConfig, 'role' | 'backend' | 'enableEarlyPrefixTransfer' | 'noProgressTimeoutMs'>> {
  readonly role: ServerRole;
  readonly backend: 'NIXL' | 'HOST';
  readonly enableEarlyPrefixTransfer: boolean;
  readonly noProgressTimeoutMs: number;
}

/** A configuration with every default applied, and what was worth a warning. */
export interface ResolvedConfig {
  /** Deeply frozen. */
  readonly config: CacheTransceiverConfig;
  /** For the operator, each once; nothing is logged here. */
  readonly warnings: readonly ConfigWarning[];
}

/**
 * The one place that applies defaults to a `cacheTransceiverConfig` and rejects a wrong one. Pure; resolving a result gives it again.
 * camelCase and snake_case names are accepted. `undefined` and `null` (an empty YAML section) mean all defaults.
 *
 * @example
 * const { config, warnings } = resolveCacheTransceiverConfig(
 *   { enable_pipelined_transfer: true },
 *   { nixlAvailable: false, nixlReason: 'libnixl_capi.so not found', scheduleStyle: 'generation_first' },
 * );
 * // config.backend === 'HOST', config.enableEarlyPrefixTransfer === true, and one warning about NIXL
 *
 * @throws ConfigError naming every setting to change; `details.problems` lists them
 */
export function resolveCacheTransceiverConfig(input: unknown, facts: ConfigFacts = {}): ResolvedConfig {
  const given = input ?? {};
  if (!isMap(given))
    throw rejection([{ setting: '', message: `it must be a map of settings, got ${shownValue(input)}` }]);
  const named = nameSettings(given);
  const spelling = new KeySpelling(given, SPELLED_NAMES, 'camelCase');
  const parsed = cacheTransceiverSchema.safeParse(named.settings);
  if (!parsed.success) {
    const found = [...named.problems, ...parsed.error.issues.map((issue) => problemOf(issue, named.settings))];
    throw rejection(found.map((one) => spelled(one, spelling)));
  }
  const settings = parsed.data;
  const role = settings.role ?? facts.role ?? 'both';
  const problems = [...named.problems, ...unavailableProblems(settings), ...ruleProblems(settings, facts, role)];
  if (problems.length > 0) throw rejection(problems.map((one) => spelled(one, spelling)));

  const backend = chooseBackend(settings.backend, facts);
  const { kvTransferTimeoutMs } = settings;
  const config: CacheTransceiverConfig = {
    ...settings,
    role,
    backend: backend.chosen,
    bounce: settings.kvCacheBounceSizeMb > 0 ? (settings.bounce ?? bounceSchema.parse({})) : null,
    enableEarlyPrefixTransfer: settings.enableEarlyPrefixTransfer ?? settings.enablePipelinedTransfer,
    noProgressTimeoutMs: settings.noProgressTimeoutMs ?? Math.min(DEFAULT_NO_PROGRESS_TIMEOUT_MS, kvTransferTimeoutMs),
  };
  const warnings = [...named.warnings, ...backend.warnings, ...ruleWarnings(settings)];
  return deepFreeze({ config, warnings: warnings.map((one) => spelled(one, spelling)) });
}

function spelled({ setting, message }: ConfigProblem, spelling: KeySpelling): ConfigProblem {
  return { setting, message: spelling.text(message) };
}

function chooseBackend(
  backend: ParsedConfig['backend'],
  facts: ConfigFacts,
): { readonly chosen: 'NIXL' | 'HOST'; readonly warnings: readonly ConfigWarning[] } {
  if (backend !== 'DEFAULT') return { chosen: backend, warnings: [] };
  if (facts.nixlAvailable === true) return { chosen: 'NIXL', warnings: [] };
  const why = facts.nixlAvailable === undefined ? 'nobody looked for it' : (facts.nixlReason ?? 'it does not load');
  const message =
    `backend DEFAULT uses HOST, because NIXL is not available: ${why}. HOST reaches peers on this machine only; ` +
    'install NIXL for others, or set backend to HOST to silence this';
  return { chosen: 'HOST', warnings: [{ setting: 'backend', message }] };
}

function problemOf(issue: z.core.$ZodIssue, settings: Readonly<Record<string, unknown>>): ConfigProblem {
  const setting = issue.path.map(String).join('.');
  let value: unknown = settings;
  for (const key of issue.path) value = isMap(value) || Array.isArray(value) ? Reflect.get(value, key) : undefined;
  // Whatever was written among the keys may be a secret in the wrong place.
  const got = setting.startsWith('security.') && typeof value === 'string' ? 'other text' : shownValue(value);
  return { setting, message: `${setting} ${issue.message}, got ${got}` };
}

function rejection(found: readonly ConfigProblem[]): ConfigError {
  // One value can break several parts of one rule, which say the same.
  const problems = [...new Map(found.map((problem) => [problem.message, problem])).values()];
  const [first] = problems;
  const text =
    problems.length === 1 && first !== undefined
      ? first.message
      : `${problems.length} problems:${problems.map(({ message }) => `\n  - ${message}`).join('')}`;
  return new ConfigError(`cacheTransceiverConfig: ${text}`, { details: { problems } });
}

type DeepReadonly<T> = T extends object ? { readonly [K in keyof T]: DeepReadonly<T[K]> } : T;

function deepFreeze<T extends object>(value: T): T {
  for (const inner of Object.values(value)) {
    if (typeof inner === 'object' && inner !== null && !Object.isFrozen(inner)) deepFreeze(inner);
  }
  return Object.freeze(value);
}
