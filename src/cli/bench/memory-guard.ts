import { freemem } from 'node:os';
import { UsageError } from '../usage-error.js';
import { formatBytes } from './text-table.js';

/** Left to the two processes themselves and to the rest of the machine. */
const RESERVE_BYTES = 512 * 2 ** 20;

/** Bytes this process may still use: what the kernel can give, or the container's limit where that is smaller. */
export function availableBytes(): number {
  const constrained = typeof process.availableMemory === 'function' ? process.availableMemory() : freemem();
  return Math.min(freemem(), constrained);
}

/** @throws UsageError when pools of that size do not fit; a machine that starts to swap measures nothing */
export function checkPoolsFit(
  poolBytes: number,
  poolCount: number,
  remedy: string,
  available = availableBytes(),
): void {
  checkMemory(poolBytes * poolCount, `${poolCount} pools of ${formatBytes(poolBytes)}`, remedy, available);
}

/**
 * @param what the pools, for the message
 * @throws UsageError when `bytes` of pools do not fit beside the reserve
 */
export function checkMemory(bytes: number, what: string, remedy: string, available = availableBytes()): void {
  if (bytes + RESERVE_BYTES <= available) return;
  throw new UsageError(
    `not enough memory: ${what} and ${formatBytes(RESERVE_BYTES)} of reserve, ${formatBytes(available)} free; ${remedy}`,
  );
}
