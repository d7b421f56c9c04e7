import type { RankInfo } from '../mapping/rank-info.js';
import { asInteger, type DecodedMap } from './decoded-map.js';
import { MAX_AGENT_METADATA_BYTES, MAX_LAYERS, MAX_NAME_BYTES, MAX_WRITERS } from './limits.js';
import { pageTableFields, readPageTable } from './page-table-codec.js';
import { wireError } from './wire-reason.js';

const AGENTS: readonly RankInfo['agent'][] = ['host', 'nixl', 'sim'];

/** A peer's RankInfo as it came over the wire: every number in range, and the topology consistent in itself. */
export function readRankInfo(map: DecodedMap): RankInfo {
  const size = (name: string): number => map.integer(name, 1, MAX_WRITERS);
  const tpSize = size('tpSize');
  const ppSize = size('ppSize');
  const cpSize = size('cpSize');
  const dpSize = size('dpSize');
  if (tpSize * ppSize * cpSize > MAX_WRITERS) {
    throw wireError('count-over-cap', `${tpSize} x ${ppSize} x ${cpSize} ranks; at most ${MAX_WRITERS}`);
  }
  const layersPerStage = map.list('layersPerStage', MAX_WRITERS, (item, path) => asInteger(item, 0, MAX_LAYERS, path));
  if (layersPerStage.length !== ppSize) {
    throw wireError('bad-value', `${map.pathOf('layersPerStage')} must have ppSize ${ppSize} entries`);
  }
  return {
    packageVersion: map.string('packageVersion', MAX_NAME_BYTES),
    instanceName: map.string('instanceName', MAX_NAME_BYTES),
    incarnation: map.u64('incarnation'),
    rank: map.integer('rank', 0, MAX_WRITERS - 1),
    tpSize,
    tpRank: map.integer('tpRank', 0, tpSize - 1),
    ppSize,
    ppRank: map.integer('ppRank', 0, ppSize - 1),
    cpSize,
    cpRank: map.integer('cpRank', 0, cpSize - 1),
    dpSize,
    dpRank: map.integer('dpRank', 0, dpSize - 1),
    attentionDp: map.boolean('attentionDp'),
    layersPerStage,
    endpoint: map.endpoint('endpoint'),
    agent: map.oneOf('agent', AGENTS),
    agentMetadata: map.bytes('agentMetadata', MAX_AGENT_METADATA_BYTES),
    pageTable: map.field('pageTable', readPageTable),
  };
}

/** Maps with plain values, for the encoder: exactly the published fields, whatever else the object carries. */
export function rankInfoFields(info: RankInfo): Record<string, unknown> {
  return {
    packageVersion: info.packageVersion,
    instanceName: info.instanceName,
    incarnation: info.incarnation,
    rank: info.rank,
    tpSize: info.tpSize,
    tpRank: info.tpRank,
    ppSize: info.ppSize,
    ppRank: info.ppRank,
    cpSize: info.cpSize,
    cpRank: info.cpRank,
    dpSize: info.dpSize,
    dpRank: info.dpRank,
    attentionDp: info.attentionDp,
    layersPerStage: [...info.layersPerStage],
    endpoint: info.endpoint,
    agent: info.agent,
    agentMetadata: info.agentMetadata,
    pageTable: pageTableFields(info.pageTable),
  };
}
