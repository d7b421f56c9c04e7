import type { ConfigFacts, ServerRole } from './facts.js';
import { isHost, isLoopback } from './host-address.js';
import type { ConfigProblem, ConfigWarning } from './problem.js';
import type { ParsedConfig } from './schema.js';

const MIB = 1024 * 1024;

/** Rules between settings, and between settings and facts. Each message names the setting to change. */
export function ruleProblems(config: ParsedConfig, facts: ConfigFacts, role: ServerRole): ConfigProblem[] {
  return [
    ...roleProblems(config, facts),
    ...backendProblems(config, facts),
    ...pipeliningProblems(config, facts, role),
    ...bounceProblems(config),
    ...listenProblems(config),
  ];
}

export function ruleWarnings(config: ParsedConfig): ConfigWarning[] {
  const warnings: ConfigWarning[] = [];
  const { noProgressTimeoutMs, kvTransferTimeoutMs, listen } = config;
  if (noProgressTimeoutMs !== null && noProgressTimeoutMs > kvTransferTimeoutMs) {
    warnings.push({
      setting: 'noProgressTimeoutMs',
      message: `noProgressTimeoutMs ${noProgressTimeoutMs} has no effect above kvTransferTimeoutMs ${kvTransferTimeoutMs}`,
    });
  }
  if (!isLoopback(listen.host)) {
    warnings.push({
      setting: 'security.allowPlaintext',
      message:
        `security.allowPlaintext: control frames on ${listen.host} are neither encrypted nor authenticated; ` +
        'whoever reaches the port can ask for cached pages',
    });
  }
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

function bounceProblems({ bounce, kvCacheBounceSizeMb }: ParsedConfig): ConfigProblem[] {
  if (bounce === null) return [];
  if (kvCacheBounceSizeMb === 0) {
    return [problem('bounce', 'bounce has no effect without an arena; set kvCacheBounceSizeMb, or remove bounce')];
  }
  if (bounce.maxChunkSize <= kvCacheBounceSizeMb * MIB) return [];
  return [
    problem(
      'bounce.maxChunkSize',
      `bounce.maxChunkSize ${bounce.maxChunkSize} is larger than the arena of ${kvCacheBounceSizeMb} MiB; ` +
        'lower bounce.maxChunkSize or raise kvCacheBounceSizeMb',
    ),
  ];
}

function listenProblems({ listen, security }: ParsedConfig): ConfigProblem[] {
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
  if (!isLoopback(listen.host) && !security.allowPlaintext) {
    problems.push(
      problem(
        'security.allowPlaintext',
        `listen.host ${listen.host} can be reached from other machines and control frames are not encrypted; ` +
          'set listen.host to a loopback address, or security.allowPlaintext to true on a network you trust',
      ),
    );
  }
  return problems;
}

function problem(setting: string, message: string): ConfigProblem {
  return { setting, message };
}
