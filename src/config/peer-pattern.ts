import { isHost } from './host-address.js';

/** Whose server key an entry of `security.curve.peers` is: every peer, all of a host, or one endpoint. */
export const ANY_PEER = '*';

const WITH_PORT = /^(?:tcp:\/\/)?([^:/]+):([1-9][0-9]{0,4})$/;

/** `*`, `HOST`, `HOST:PORT` or `tcp://HOST:PORT`. */
export function isPeerPattern(text: string): boolean {
  if (text === ANY_PEER) return true;
  const match = WITH_PORT.exec(text);
  return match === null ? isHost(text) : isHost(match[1] as string) && Number(match[2]) <= 65535;
}

/** The entry that fits best: the endpoint before its host, the host before `*`. */
export function keyOfPeer(
  peers: Readonly<Record<string, string>>,
  { host, port }: { readonly host: string; readonly port: number },
): string | null {
  for (const pattern of [`tcp://${host}:${port}`, `${host}:${port}`, host, ANY_PEER]) {
    const key = Object.hasOwn(peers, pattern) ? peers[pattern] : undefined;
    if (key !== undefined) return key;
  }
  return null;
}
