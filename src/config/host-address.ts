const IPV4 = /^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$/;

export function isIpv4(host: string): boolean {
  return IPV4.test(host);
}

/** Only this machine can reach it. A name other than localhost may resolve to anything, so it does not count. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || (isIpv4(host) && host.startsWith('127.'));
}

/** An IPv4 address or a DNS name. */
export function isHost(host: string): boolean {
  // "1.2.3" or "300.1.1.1" would be read as an address by some resolvers and as a name by others.
  if (/^[0-9.]+$/.test(host)) return isIpv4(host);
  return /^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/.test(host);
}
