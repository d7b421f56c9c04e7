import { readFileSync } from 'node:fs';
import { MAX_CONNECTIONS } from './limits.js';

/**
 * Descriptors that one peer costs: three of our socket and its monitor, the connection made to it and the one it made to us, and what an agent
 * keeps of its process (with shared memory five: two pools, two sockets, a handle of the process). Ten; `test/integration/hostile-peers.test.ts`
 * counts them.
 */
const DESCRIPTORS_PER_CONNECTION = 12;
/** For everything else in the process: its files, its clients, pools, connections that are refused. At most half of a small limit. */
const RESERVED = 512;

/**
 * The soft limit of open files of this process. Node raises it to the hard one when it starts.
 * @param read the text of /proc/self/limits
 * @returns Infinity where it is unlimited or cannot be known
 */
export function readDescriptorLimit(read: () => string = () => readFileSync('/proc/self/limits', 'utf8')): number {
  try {
    const soft = /^Max open files\s+(\S+)/m.exec(read())?.[1];
    return soft === undefined || soft === 'unlimited' || !/^[0-9]+$/.test(soft)
      ? Number.POSITIVE_INFINITY
      : Number(soft);
  } catch {
    return Number.POSITIVE_INFINITY;
  }
}

/**
 * Connections that a messenger can have without the process running out of descriptors. At least one.
 * @param messengers that the process has: ranks of one server may share it
 */
export function connectionsWithin(descriptorLimit: number, messengers = 1): number {
  if (descriptorLimit === Number.POSITIVE_INFINITY) return MAX_CONNECTIONS;
  const free = descriptorLimit - Math.min(RESERVED, Math.floor(descriptorLimit / 2));
  return Math.max(1, Math.min(MAX_CONNECTIONS, Math.floor(free / DESCRIPTORS_PER_CONNECTION / messengers)));
}
