import { Context } from 'zeromq';
import { MAX_CONNECTIONS } from './limits.js';

/**
 * Each connection takes three sockets (its own and the two ends of its monitor); ZeroMQ's default of 1023 would end at 340. The rest is for what
 * is bound, and for messengers of the same process that have few peers.
 */
const MAX_SOCKETS = 3 * MAX_CONNECTIONS + 1024;

let shared: Context | null = null;

/**
 * The ZeroMQ context of this JS thread: one I/O thread for all messengers, apart from other users of the library in the same process.
 * Not blocky: a closed messenger must not hold up the end of the process beyond its own linger time.
 */
export function zeromqContext(): Context {
  shared ??= new Context({ maxSockets: MAX_SOCKETS, blocky: false });
  return shared;
}
