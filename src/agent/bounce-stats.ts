/** In the order of `BounceGauge` of native/core/bounce_gauges.h. */
const NAMES = [
  'arenaBytes',
  'arenaUsedBytes',
  'chunksGranted',
  'chunksWaiting',
  'chunksQuarantined',
  'lostBytes',
  'slicesSending',
  'requestsReceiving',
  'bytesGathered',
  'bytesScattered',
  'nacksSent',
  'nacksReceived',
  'quarantinedTotal',
  'heldOut',
  'foreignFrames',
  'staleFrames',
] as const;

/**
 * One agent's bounce arena.
 *
 * Now: `arenaBytes`; `arenaUsedBytes` (granted to peers, staged for them, in quarantine); `chunksGranted` (regions that a peer may write or
 * that are being scattered); `chunksWaiting` (asked for by peers, and no region is free); `chunksQuarantined` (regions that nobody wants any
 * more and that may still be written); `lostBytes` (of the arena, under those of them whose writers were removed or are gone: they come back
 * when it is proven that the writer writes no more, or never); `slicesSending`; `requestsReceiving` (parts of slices that peers send here).
 *
 * Since it was opened: `bytesGathered`, `bytesScattered`; `nacksSent`, `nacksReceived` (parts of slices that one side gave up on);
 * `quarantinedTotal`; `heldOut` (failures that were reported before every answer had come: `drained` was false); `foreignFrames` (not from
 * whom they concern), `staleFrames` (doubled or late).
 */
export type BounceStats = Readonly<Record<(typeof NAMES)[number], number>>;

/** @param numbers of `NativeAgent.bounceStats` */
export function readBounceStats(numbers: Float64Array): BounceStats {
  return Object.fromEntries(NAMES.map((name, index) => [name, numbers[index] ?? 0])) as BounceStats;
}
