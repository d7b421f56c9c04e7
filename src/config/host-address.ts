const IPV4 = /^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$/;

export function isIpv4(host: string): boolean {
  return IPV4.test(host);
}

/** Only this machine can reach it. A name other than localhost may resolve to anything, so it does not count. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || (isIpv4(host) && host.startsWith('127.'));
}

/** An IPv4 address or a host name, by its form. */
export function isHost(host: string): boolean {
  if (/^[0-9.]+$/.test(host)) return isIpv4(host);
  return /^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$/.test(host);
}
