import type { CacheTransceiverConfig } from '../config/index.js';
import { readCurveKeyFile } from './curve-key-file.js';
import type { ZeromqMessengerOptions } from './zeromq-messenger.js';

/**
 * What `ZeromqMessenger.open` needs of a configuration: where to listen, and the keys, which are read from their file here.
 *
 * @example
 * const { config } = resolveCacheTransceiverConfig({ security: { curve: { secretKeyFile: '/etc/kvt/cluster.key_secret' } } });
 * const messenger = await ZeromqMessenger.open({ ...(await messengerOptions(config)), onWarning: (text) => log.warn(text) });
 *
 * @throws ConfigError when the key file cannot be used
 */
export async function messengerOptions(
  config: Pick<CacheTransceiverConfig, 'listen' | 'security'>,
): Promise<ZeromqMessengerOptions> {
  const { listen, security } = config;
  const { curve, allowPlaintext, allowedClients } = security;
  return {
    host: listen.host,
    port: listen.port,
    advertiseHost: listen.advertiseHost,
    allowPlaintext,
    curve:
      curve === null ? null : { ...(await readCurveKeyFile(curve.secretKeyFile)), peers: curve.peers, allowedClients },
  };
}
