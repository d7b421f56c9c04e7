import { isIpv4 } from '../config/host-address.js';
import { MAX_ENDPOINT_BYTES } from './limits.js';

export interface EndpointParts {
  readonly host: string;
  readonly port: number;
}

const ENDPOINT = /^tcp:\/\/([A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?):([1-9][0-9]{0,4})$/;

/**
 * The one form of a control endpoint: `tcp://host:port`, host an IPv4 address or a DNS name. Other transports of the messaging
 * library (`ipc://` names a file, `inproc://` an object, an interface name with `;` a source address) must never be reachable from a frame.
 * @returns null when `endpoint` is anything else
 */
export function parseEndpoint(endpoint: string): EndpointParts | null {
  if (endpoint.length > MAX_ENDPOINT_BYTES) return null;
  const match = ENDPOINT.exec(endpoint);
  if (match === null) return null;
  const host = match[1] as string;
  const port = Number(match[2]);
  if (port > 65535) return null;
  // "1.2.3" or "300.1.1.1" would be read as an address by some resolvers and as a name by others.
  if (/^[0-9.]+$/.test(host) && !isIpv4(host)) return null;
  return { host, port };
}

/** Most messages name an endpoint that earlier ones named. */
const known = new Set<string>();
const MAX_KNOWN = 4096;

/** Whether `parseEndpoint` takes it, remembered. */
export function isEndpoint(text: string): boolean {
  if (known.has(text)) return true;
  if (parseEndpoint(text) === null) return false;
  if (known.size >= MAX_KNOWN) known.clear();
  known.add(text);
  return true;
}

export function formatEndpoint({ host, port }: EndpointParts): string {
  return `tcp://${host}:${port}`;
}
