import { isHost, isLoopback } from '../host-address.js';

/** Every address of a machine, to listen on. */
const ANY_HOST = '0.0.0.0';

/** What is wrong with a `host:port` of a server, or null. */
export function urlProblem(url: string): string | null {
  const match = /^([^:/?#@\s]+):(\d{1,5})$/.exec(url);
  if (match === null) return 'must be host:port, without a scheme or a path';
  if (!isHost(match[1] as string)) return 'has no valid host name or IPv4 address';
  if (match[1] === ANY_HOST) return `is no address to reach a server at; name the one that others know it by`;
  const port = Number(match[2]);
  return port >= 1 && port <= 65535 ? null : 'has a port outside 1 to 65535';
}

/** The same text for every spelling of one `host:port`: upper case, the name of loopback, and zeros before the port. */
export function serverAddress(url: string): string {
  const colon = url.lastIndexOf(':');
  const host = url.slice(0, colon).toLowerCase();
  return `${host === 'localhost' ? '127.0.0.1' : host}:${Number(url.slice(colon + 1))}`;
}

/** Whether a server that listens on `hostname` and `port` is the one at `url`. Port 0, any free one, is nobody's yet. */
export function isListener(url: string, hostname: string, port: number): boolean {
  if (port === 0) return false;
  const colon = url.lastIndexOf(':');
  if (hostname === ANY_HOST)
    return isLoopback(url.slice(0, colon).toLowerCase()) && Number(url.slice(colon + 1)) === port;
  return serverAddress(url) === serverAddress(`${hostname}:${port}`);
}
