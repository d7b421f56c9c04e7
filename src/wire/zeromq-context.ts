import { Context } from 'zeromq';

/** Each peer takes three sockets (its own and the two ends of its monitor); ZeroMQ's default of 1023 would end at 340 peers. */
const MAX_SOCKETS = 16_384;

let shared: Context | null = null;

/**
 * The ZeroMQ context of this JS thread: one I/O thread for all messengers, apart from other users of the library in the same process.
 * Not blocky: a closed messenger must not hold up the end of the process beyond its own linger time.
 */
export function zeromqContext(): Context {
  shared ??= new Context({ maxSockets: MAX_SOCKETS, blocky: false });
  return shared;
}
