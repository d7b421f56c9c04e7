import { lookup } from 'node:dns/promises';
import { type Event, Router } from 'zeromq';
import { isIpv4, isLoopback } from '../config/host-address.js';
import { ConfigError, ResourceError } from '../errors.js';
import { formatEndpoint, parseEndpoint } from './endpoint.js';
import { LOOK_AGAIN_MS, MAX_ENCRYPTED_FRAME_BYTES, MAX_FRAME_BYTES } from './limits.js';
import { zeromqContext } from './zeromq-context.js';
import type { CurveIdentity } from './zeromq-curve.js';
import { type SocketMonitor, watchSocket } from './zeromq-monitor.js';

export interface PortRange {
  readonly first: number;
  readonly last: number;
}

export interface BindOptions {
  /** IPv4 address or name of an interface's address on this machine; default 127.0.0.1. */
  readonly host?: string;
  /** 0 (default) = any free port; a range = the first free one in it. */
  readonly port?: number | PortRange;
  /** What peers are told to connect to; needed when `host` is 0.0.0.0. Default: `host`. */
  readonly advertiseHost?: string | null;
  /** Allows a bind that other machines can reach, without encryption. Default false. */
  readonly allowPlaintext?: boolean;
}

/** Encryption of the bound socket; null = none. */
export type BoundSecurity = ReturnType<CurveIdentity['serverOptions']> | null;

export interface BoundRouter {
  readonly router: Router;
  /** It ends when the port is free again. */
  readonly monitor: SocketMonitor;
  /** As peers reach it. */
  readonly endpoint: string;
}

/**
 * Opens the one socket that peers send to.
 * @throws ConfigError when the options are wrong, the address is not this machine's, or no port is free
 * @throws ResourceError when descriptors or sockets have run out
 */
export async function bindRouter(
  options: BindOptions,
  security: BoundSecurity,
  onEvent: (event: Event) => void,
): Promise<BoundRouter> {
  const host = options.host ?? '127.0.0.1';
  const range = portRange(options.port ?? 0);
  const advertiseHost = checkAdvertised(host, options.advertiseHost ?? null);
  if (!isLoopback(host) && security === null && options.allowPlaintext !== true) {
    throw new ConfigError(
      `listen.host ${host} can be reached from other machines and control frames would not be encrypted; ` +
        'set security.curve, use a loopback address, or set security.allowPlaintext on a network you trust',
    );
  }
  const address = await resolveLocal(host);
  const { router, monitor } = openRouter(security, onEvent);
  try {
    const port = await bindFirstFree(router, host, address, range);
    return { router, monitor, endpoint: formatEndpoint({ host: advertiseHost, port }) };
  } catch (error) {
    router.close();
    throw error;
  }
}

function openRouter(security: BoundSecurity, onEvent: (event: Event) => void): Pick<BoundRouter, 'router' | 'monitor'> {
  const options = {
    context: zeromqContext(),
    linger: 0,
    ipv6: false,
    maxMessageSize: security === null ? MAX_FRAME_BYTES : MAX_ENCRYPTED_FRAME_BYTES,
    receiveHighWaterMark: 1000,
    receiveTimeout: LOOK_AGAIN_MS,
    // Of one connection: answers to those who are no peers.
    sendHighWaterMark: 16,
    handshakeInterval: 5000,
    backlog: 512,
    ...security,
  };
  let router: Router | null = null;
  try {
    router = new Router(options);
    // Created before the first connection: its refusals are events too.
    return { router, monitor: watchSocket(router, onEvent) };
  } catch (cause) {
    router?.close();
    throw new ResourceError(
      `cannot open the socket that peers send to (${String((cause as { code?: unknown }).code)}); check the limits of the process (ulimit -n)`,
      { cause },
    );
  }
}

function portRange(port: number | PortRange): PortRange {
  const { first, last } = typeof port === 'number' ? { first: port, last: port } : port;
  const valid = Number.isInteger(first) && Number.isInteger(last) && first >= 0 && first <= last && last <= 65535;
  if (!valid || (first === 0 && last !== 0)) {
    throw new ConfigError(
      `listen.port must be 0, a port, or a range first..last within 1..65535, got ${first}..${last}`,
    );
  }
  return { first, last };
}

function checkAdvertised(host: string, advertiseHost: string | null): string {
  const advertised = advertiseHost ?? (host === 'localhost' ? '127.0.0.1' : host);
  if (advertised === '0.0.0.0') {
    throw new ConfigError('listen.host 0.0.0.0 is no address that peers can connect to; set listen.advertiseHost');
  }
  if (parseEndpoint(formatEndpoint({ host: advertised, port: 1 })) === null) {
    throw new ConfigError(
      `${advertiseHost === null ? 'listen.host' : 'listen.advertiseHost'} must be an IPv4 address or a host name, ` +
        `got ${JSON.stringify(advertised)}`,
    );
  }
  return advertised;
}

/** ZeroMQ binds to addresses, not to names. */
async function resolveLocal(host: string): Promise<string> {
  if (isIpv4(host)) return host;
  if (host === 'localhost') return '127.0.0.1';
  try {
    return (await lookup(host, { family: 4 })).address;
  } catch (cause) {
    throw new ConfigError(`listen.host ${host} has no IPv4 address; set listen.host to an address of this machine`, {
      cause,
    });
  }
}

async function bindFirstFree(router: Router, host: string, address: string, range: PortRange): Promise<number> {
  if (range.first === 0) {
    await bindOnce(router, host, `tcp://${address}:*`, 0);
    return boundPort(router);
  }
  for (let port = range.first; port <= range.last; port++) {
    if (await bindOnce(router, host, `tcp://${address}:${port}`, port)) return port;
  }
  const ports = range.first === range.last ? `port ${range.first}` : `every port of ${range.first}..${range.last}`;
  throw new ConfigError(
    `${ports} on ${host} is in use; stop the process that holds it, or set listen.port to another port or to 0 for any free one`,
    { details: { host, firstPort: range.first, lastPort: range.last } },
  );
}

/** @returns false when the port is in use */
async function bindOnce(router: Router, host: string, address: string, port: number): Promise<boolean> {
  try {
    await router.bind(address);
    return true;
  } catch (cause) {
    const code = (cause as { code?: unknown }).code;
    if (code === 'EADDRINUSE') return false;
    const details = { host, port, code };
    if (code === 'EADDRNOTAVAIL' || code === 'ENODEV') {
      throw new ConfigError(`listen.host ${host} is not an address of this machine; set listen.host to one that is`, {
        cause,
        details,
      });
    }
    if (code === 'EACCES' || code === 'EPERM') {
      throw new ConfigError(`port ${port} needs privileges this process lacks; set listen.port to 1024 or above`, {
        cause,
        details,
      });
    }
    throw new ResourceError(`cannot listen on ${address} (${String(code)}); check the process's limits (ulimit -n)`, {
      cause,
      details,
    });
  }
}

function boundPort(router: Router): number {
  const port = Number(/:(\d+)$/.exec(router.lastEndpoint ?? '')?.[1]);
  if (!Number.isInteger(port))
    throw new ResourceError('cannot tell which port was bound; set listen.port to a fixed port');
  return port;
}
