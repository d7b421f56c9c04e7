import { ProtocolError } from '../errors.js';
import type { PageTable, PageTableGroup } from '../mapping/page-table.js';
import { validatePageTable } from '../mapping/validate-page-table.js';
import { wireError } from './wire-reason.js';

/**
 * A peer's page table as it came over the wire: afterwards every address computed from it stays inside the pools it names. Whether it
 * fits ours is compatibility's question.
 */
export function readPageTable(value: unknown): PageTable {
  try {
    return validatePageTable(value, 'peer');
  } catch (cause) {
    if (!(cause instanceof ProtocolError)) throw cause;
    throw wireError('bad-page-table', cause.message, cause);
  }
}

/** Maps with plain values, for the encoder. */
export function pageTableFields(table: PageTable): Record<string, unknown> {
  return {
    pools: table.pools.map((pool) => ({
      base: pool.base,
      memory: pool.memory.kind === 'host' ? { kind: 'host' } : { kind: 'device', deviceId: pool.memory.deviceId },
      slotBytes: pool.slotBytes,
      slotStride: pool.slotStride,
      slotCount: pool.slotCount,
    })),
    layerGroups: table.layerGroups.map(groupFields),
    aux: table.aux === null ? null : groupFields(table.aux),
  };
}

function groupFields(group: PageTableGroup): Record<string, unknown> {
  return {
    kind: group.kind,
    windowSize: group.windowSize,
    ...(group.sinkTokens === undefined ? {} : { sinkTokens: group.sinkTokens }),
    ...(group.auxLayout === undefined ? {} : { auxLayout: group.auxLayout }),
    tokensPerBlock: group.tokensPerBlock,
    slotCount: group.slotCount,
    views: group.views.map((view) => ({
      role: view.role,
      dtype: view.dtype,
      layout: view.layout,
      headsPerRank: view.headsPerRank,
      headDim: view.headDim,
      ...(view.sections === undefined
        ? {}
        : { sections: view.sections.map(({ bytes, unitBytes }) => ({ bytes, unitBytes })) }),
      layers: view.layers.map(({ layer, pool, offset, bytes }) => ({ layer, pool, offset, bytes })),
    })),
  };
}
