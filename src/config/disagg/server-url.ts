import { isHost } from '../host-address.js';

/** What is wrong with a `host:port` of a server, or null. */
export function urlProblem(url: string): string | null {
  const match = /^([^:/?#@\s]+):(\d{1,5})$/.exec(url);
  if (match === null) return 'must be host:port, without a scheme or a path';
  if (!isHost(match[1] as string)) return 'has no valid host name or IPv4 address';
  const port = Number(match[2]);
  return port >= 1 && port <= 65535 ? null : 'has a port outside 1 to 65535';
}

/** The same text for every spelling of one `host:port`: upper case, and zeros before the port. */
export function serverAddress(url: string): string {
  const colon = url.lastIndexOf(':');
  return `${url.slice(0, colon).toLowerCase()}:${Number(url.slice(colon + 1))}`;
}
