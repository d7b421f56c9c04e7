const IPV4 = /^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$/;

export function isIpv4(host: string): boolean {
  return IPV4.test(host);
}

/** Only this machine can reach it. A name other than localhost may resolve to anything, so it does not count. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || (isIpv4(host) && host.startsWith('127.'));
}
