import { describe, expect, it } from 'vitest';
import { resolveCacheTransceiverConfig } from '../../../src/config/index.js';
import { isPeerPattern, keyOfPeer } from '../../../src/config/peer-pattern.js';
import { decodeKey, encodeKey } from '../../../src/config/z85.js';
import { ConfigError } from '../../../src/errors.js';
import { generateCurveKeyPair } from '../../../src/wire/curve-keys.js';

const KEY = generateCurveKeyPair().publicKey;
const FILE = '/etc/kv-transceiver/cluster.key_secret';

function resolve(security: unknown, listen: unknown = {}) {
  return resolveCacheTransceiverConfig({ security, listen }, { nixlAvailable: true });
}

function refusal(security: unknown, listen: unknown = {}): ConfigError {
  try {
    resolve(security, listen);
  } catch (error) {
    if (error instanceof ConfigError) return error;
    throw error;
  }
  throw new Error('the configuration was not rejected');
}

describe('security', () => {
  it('keys allow any address, without a warning', () => {
    const { config, warnings } = resolve(
      { curve: { secret_key_file: FILE, peers: { '10.0.0.7': KEY } }, allowed_clients: [KEY] },
      { host: '10.0.0.5' },
    );
    expect(config.security).toEqual({
      curve: { secretKeyFile: FILE, peers: { '10.0.0.7': KEY } },
      allowPlaintext: false,
      allowedClients: [KEY],
    });
    expect(warnings).toEqual([]);
    expect(resolveCacheTransceiverConfig(config, { nixlAvailable: true }).config).toEqual(config);
  });

  it('consent to plaintext has no effect with keys, and says so', () => {
    const { warnings } = resolve({ curve: { secretKeyFile: FILE }, allowPlaintext: true });
    expect(warnings).toMatchObject([{ setting: 'security.allowPlaintext' }]);
    expect(warnings[0]?.message).toContain('no effect with security.curve');
  });

  it.each([
    ['an allow-list without keys of our own', { allowedClients: [KEY] }, 'set security.curve.secretKeyFile'],
    ['keys without a file', { curve: { peers: { '*': KEY } } }, 'security.curve.secretKeyFile must be the path'],
    ['an allowed client that is no key', { curve: { secretKeyFile: FILE }, allowedClients: ['x'] }, 'allowedClients.0'],
    ['a peer whose key is none', { curve: { secretKeyFile: FILE, peers: { '*': 'x' } } }, 'the key of * must be'],
    ['a peer that is no address', { curve: { secretKeyFile: FILE, peers: { 'ipc:///x': KEY } } }, 'is no peer'],
    ['peers as a list', { curve: { secretKeyFile: FILE, peers: [KEY] } }, 'must be a map from peer to public key'],
    ['a secret instead of a path', { curve: { secretKeyFile: KEY } }, 'must be the path of a key file, not a key'],
    ['an inline secret', { curve: { secretKey: KEY } }, 'did you mean security.curve.secretKeyFile?'],
    ['a key in the wrong place', { curve: KEY }, 'must be a map with secretKeyFile and peers'],
    ['a key as consent', { allowPlaintext: KEY }, 'must be true or false'],
    ['a key as the list', { allowedClients: KEY }, 'must be a list of public keys'],
  ])('%s is refused; no message repeats what may be a secret', (_name, security, text) => {
    const error = refusal(security);
    expect(error.message).toContain(text);
    expect(JSON.stringify([error.message, error.details])).not.toContain(JSON.stringify(KEY).slice(1, -1));
  });
});

describe('peers', () => {
  it('are named by endpoint, host or *, the closest first', () => {
    const peers = { '*': 'any', h: 'host', 'h:1': 'port', 'tcp://h:2': 'endpoint' };
    const keys = [1, 2, 3].map((port) => keyOfPeer(peers, { host: 'h', port }));
    expect([...keys, keyOfPeer(peers, { host: 'other', port: 1 })]).toEqual(['port', 'endpoint', 'host', 'any']);
    expect(keyOfPeer({}, { host: 'constructor', port: 1 })).toBeNull();
  });

  it('are patterns of those forms only', () => {
    for (const good of ['*', '10.0.0.1', 'node-1.example', 'h:1', 'tcp://h:65535'])
      expect(isPeerPattern(good)).toBe(true);
    for (const bad of ['', 'h:0', 'h:65536', '1.2.3', '300.0.0.1:1', 'ipc:///x', 'tcp://h', 'tcp://*:1', 'a b', '**'])
      expect(isPeerPattern(bad), bad).toBe(false);
  });
});

describe('keys as text', () => {
  it('are Z85: the example of its specification', () => {
    // RFC 32: 86 4F D2 6F B5 59 F7 5B is HelloWorld.
    const bytes = Buffer.from('864fd26fb559f75b'.repeat(4), 'hex');
    expect(encodeKey(bytes)).toBe('HelloWorld'.repeat(4));
    expect(decodeKey('HelloWorld'.repeat(4))).toEqual(new Uint8Array(bytes));
  });

  it('are refused when they are none', () => {
    for (const text of ['', KEY.slice(1), `${KEY}0`, `${KEY.slice(1)}"`, `${KEY.slice(1)}~`, '#'.repeat(40)])
      expect(decodeKey(text)).toBeNull();
  });
});
