import type { ConfigFacts, ServerRole } from './facts.js';
import { isHost } from './host-address.js';
import type { ConfigProblem, ConfigWarning } from './problem.js';
import { bounceSchema, type ParsedConfig } from './schema.js';
import { securityProblems, securityWarnings } from './security-rules.js';

const MIB = 1024 * 1024;

/** Rules between settings, and between settings and facts. Each message names the setting to change. */
export function ruleProblems(config: ParsedConfig, facts: ConfigFacts, role: ServerRole): ConfigProblem[] {
  return [
    ...roleProblems(config, facts),
    ...backendProblems(config, facts),
    ...pipeliningProblems(config, facts, role),
    ...bounceProblems(config),
    ...listenProblems(config),
    ...securityProblems(config),
  ];
}

export function ruleWarnings(config: ParsedConfig): ConfigWarning[] {
  const warnings: ConfigWarning[] = [];
  const { noProgressTimeoutMs, kvTransferTimeoutMs } = config;
  if (noProgressTimeoutMs !== null && noProgressTimeoutMs > kvTransferTimeoutMs) {
    warnings.push({
      setting: 'noProgressTimeoutMs',
      message: `noProgressTimeoutMs ${noProgressTimeoutMs} has no effect above kvTransferTimeoutMs ${kvTransferTimeoutMs}`,
    });
  }
  warnings.push(...securityWarnings(config));
  return warnings;
}

function roleProblems(config: ParsedConfig, facts: ConfigFacts): ConfigProblem[] {
  if (config.role === null || facts.role === undefined || config.role === facts.role) return [];
  return [problem('role', `role is ${config.role}, but the server is started as ${facts.role}; make them agree`)];
}

function backendProblems(config: ParsedConfig, facts: ConfigFacts): ConfigProblem[] {
  if (config.backend !== 'NIXL' || facts.nixlAvailable !== false) return [];
  const why = facts.nixlReason === undefined ? '' : ` (${facts.nixlReason})`;
  return [problem('backend', `backend NIXL: NIXL does not load${why}; install it, or set backend to HOST or DEFAULT`)];
}

/** They bind the side that sends: a generation server receives slices of any size, in either schedule. */
function pipeliningProblems(config: ParsedConfig, facts: ConfigFacts, role: ServerRole): ConfigProblem[] {
  const { enablePipelinedTransfer, enableEarlyPrefixTransfer } = config;
  if (!enablePipelinedTransfer) {
    if (enableEarlyPrefixTransfer !== true) return [];
    return [
      problem(
        'enableEarlyPrefixTransfer',
        'enableEarlyPrefixTransfer needs enablePipelinedTransfer; set that to true, or this to false',
      ),
    ];
  }
  if (role === 'generation') return [];
  const orElse = 'or set enablePipelinedTransfer to false (or role to generation on a server that only receives)';
  const problems: ConfigProblem[] = [];
  if (facts.scheduleStyle !== undefined && facts.scheduleStyle !== 'generation_first') {
    problems.push(
      problem(
        'enablePipelinedTransfer',
        'enablePipelinedTransfer needs the destination pages before the prefill ends; ' +
          `set scheduleStyle to generation_first, ${orElse}`,
      ),
    );
  }
  if (facts.chunkedPrefillEffective === false) {
    problems.push(
      problem(
        'enablePipelinedTransfer',
        'enablePipelinedTransfer needs chunked prefill, and the scheduler runs without it; ' +
          `set enableChunkedPrefill to true and check that nothing switches it off, ${orElse}`,
      ),
    );
  }
  if (facts.beamWidth !== undefined && facts.beamWidth !== 1) {
    problems.push(
      problem(
        'enablePipelinedTransfer',
        `enablePipelinedTransfer needs beam width 1, not ${facts.beamWidth}; set beamWidth to 1, ${orElse}`,
      ),
    );
  }
  return problems;
}

/** The arena holds two of the largest chunk, one that comes and one that goes, each in a block of a power of two. */
function bounceProblems({ bounce, kvCacheBounceSizeMb }: ParsedConfig): ConfigProblem[] {
  if (kvCacheBounceSizeMb === 0) {
    if (bounce === null) return [];
    return [problem('bounce', 'bounce has no effect without an arena; set kvCacheBounceSizeMb, or remove bounce')];
  }
  const { maxChunkSize } = bounce ?? bounceSchema.parse({});
  const neededBytes = 2 * 2 ** Math.ceil(Math.log2(maxChunkSize));
  if (neededBytes <= kvCacheBounceSizeMb * MIB) return [];
  return [
    problem(
      'bounce.maxChunkSize',
      `bounce.maxChunkSize ${maxChunkSize} is too large for an arena of ${kvCacheBounceSizeMb} MiB, which must hold two of it, ` +
        'each rounded up to a power of two; ' +
        `lower bounce.maxChunkSize, or raise kvCacheBounceSizeMb to ${Math.ceil(neededBytes / MIB)}`,
    ),
  ];
}

function listenProblems({ listen }: ParsedConfig): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  if (typeof listen.port === 'object' && listen.port.first > listen.port.last) {
    problems.push(
      problem('listen.port', `listen.port: first ${listen.port.first} is above last ${listen.port.last}; swap them`),
    );
  }
  for (const [setting, host] of [
    ['listen.host', listen.host],
    ['listen.advertiseHost', listen.advertiseHost],
  ] as const) {
    if (host !== null && !isHost(host)) {
      problems.push(problem(setting, `${setting} must be an IPv4 address or a host name, got ${JSON.stringify(host)}`));
    }
  }
  if (listen.host === '0.0.0.0' && listen.advertiseHost === null) {
    problems.push(
      problem(
        'listen.advertiseHost',
        'listen.advertiseHost is needed with listen.host 0.0.0.0: peers cannot connect to that',
      ),
    );
  }
  if (listen.advertiseHost === '0.0.0.0') {
    problems.push(problem('listen.advertiseHost', 'listen.advertiseHost 0.0.0.0 is no address to connect to'));
  }
  return problems;
}

function problem(setting: string, message: string): ConfigProblem {
  return { setting, message };
}
