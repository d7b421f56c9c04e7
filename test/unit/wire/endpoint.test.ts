import { describe, expect, it } from 'vitest';
import { isIpv4, isLoopback } from '../../../src/config/host-address.js';
import { formatEndpoint, parseEndpoint } from '../../../src/wire/endpoint.js';

describe('parseEndpoint', () => {
  it.each([
    ['tcp://127.0.0.1:5555', { host: '127.0.0.1', port: 5555 }],
    ['tcp://255.255.255.255:65535', { host: '255.255.255.255', port: 65535 }],
    ['tcp://node-3.rack.example:1', { host: 'node-3.rack.example', port: 1 }],
    ['tcp://a:80', { host: 'a', port: 80 }],
  ])('reads %s', (endpoint, parts) => {
    expect(parseEndpoint(endpoint)).toEqual(parts);
    expect(formatEndpoint(parts)).toBe(endpoint);
  });

  it.each([
    '',
    'tcp://',
    'tcp://127.0.0.1',
    'tcp://127.0.0.1:',
    'tcp://127.0.0.1:0',
    'tcp://127.0.0.1:065',
    'tcp://127.0.0.1:65536',
    'tcp://127.0.0.1:99999',
    'tcp://127.0.0.1:80 ',
    ' tcp://127.0.0.1:80',
    'tcp://127.0.0.1:80\n',
    'tcp://300.0.0.1:80',
    'tcp://1.2.3:80',
    'tcp://127.0.0.1:80/x',
    'tcp://*:80',
    'tcp://eth0;10.0.0.1:80',
    'tcp://[::1]:80',
    'tcp://-a:80',
    'tcp://a-:80',
    'TCP://127.0.0.1:80',
    'ipc:///tmp/socket',
    'inproc://x',
    'udp://127.0.0.1:80',
    `tcp://${'a'.repeat(254)}:80`,
  ])('refuses %j', (endpoint) => {
    expect(parseEndpoint(endpoint)).toBeNull();
  });
});

it('knows loopback addresses', () => {
  expect(['localhost', '127.0.0.1', '127.9.9.9'].map(isLoopback)).toEqual([true, true, true]);
  expect(['127.evil.example', '10.0.0.1', '0.0.0.0', 'node'].map(isLoopback)).toEqual([false, false, false, false]);
  expect(['1.2.3.4', '01.2.3.4', '1.2.3', '256.1.1.1'].map(isIpv4)).toEqual([true, false, false, false]);
});
