import { isLoopback } from './host-address.js';
import { isPeerPattern } from './peer-pattern.js';
import type { ConfigProblem, ConfigWarning } from './problem.js';
import type { ParsedConfig } from './schema.js';
import { decodeKey, KEY_LENGTH } from './z85.js';

const KEY_RULE = `must be a public key of ${KEY_LENGTH} characters, as \`kv-transceiver keygen\` prints it`;

/**
 * Who may talk to this rank. The messages never repeat a key that is not one: a secret may have been pasted in the wrong place.
 */
export function securityProblems({ listen, security }: ParsedConfig): ConfigProblem[] {
  const { curve, allowPlaintext, allowedClients } = security;
  const problems: ConfigProblem[] = [];
  for (const [index, key] of allowedClients.entries()) {
    const setting = `security.allowedClients.${index}`;
    if (decodeKey(key) === null) problems.push({ setting, message: `${setting} ${KEY_RULE}` });
  }
  for (const [pattern, key] of Object.entries(curve?.peers ?? {})) {
    const setting = 'security.curve.peers';
    if (!isPeerPattern(pattern)) {
      const message = `${setting}: ${JSON.stringify(pattern.slice(0, 64))} is no peer; write *, a host, or tcp://host:port`;
      problems.push({ setting, message });
    } else if (decodeKey(key) === null) {
      problems.push({ setting, message: `${setting}: the key of ${pattern.slice(0, 280)} ${KEY_RULE}` });
    }
  }
  if (curve !== null) {
    const setting = 'security.curve.secretKeyFile';
    if (decodeKey(curve.secretKeyFile) !== null) {
      const message = `${setting} must be the path of a key file, not a key: a secret does not belong in a configuration`;
      problems.push({ setting, message });
    }
    return problems;
  }
  if (allowedClients.length > 0) {
    problems.push({
      setting: 'security.allowedClients',
      message:
        'security.allowedClients has no effect without keys of our own; set security.curve.secretKeyFile, or remove allowedClients',
    });
  }
  if (!isLoopback(listen.host) && !allowPlaintext) {
    problems.push({
      setting: 'security.curve',
      message:
        `listen.host ${listen.host} can be reached from other machines and control frames are not encrypted; set security.curve ` +
        '(`kv-transceiver keygen` makes the keys), listen on a loopback address, or set security.allowPlaintext to true on a network you trust',
    });
  }
  return problems;
}

export function securityWarnings({ listen, security }: ParsedConfig): ConfigWarning[] {
  const setting = 'security.allowPlaintext';
  if (security.curve !== null) {
    if (!security.allowPlaintext) return [];
    return [
      { setting, message: `${setting} has no effect with security.curve, which encrypts every frame; remove it` },
    ];
  }
  if (isLoopback(listen.host)) return [];
  const message =
    `${setting}: control frames on ${listen.host} are neither encrypted nor authenticated; ` +
    'whoever reaches the port can ask for cached pages';
  return [{ setting, message }];
}
