import type { RankInfo } from '../mapping/rank-info.js';
import { flatRank } from '../mapping/rank-place.js';
import { asInteger, type DecodedMap } from './decoded-map.js';
import { isEndpoint } from './endpoint.js';
import { instanceNameProblem } from './instance-name.js';
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
  const place = {
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
  };
  const rank = map.integer('rank', 0, MAX_WRITERS - 1);
  if (rank !== flatRank(place)) {
    throw wireError('bad-value', `${map.pathOf('rank')} is ${rank}, but its place is that of rank ${flatRank(place)}`);
  }
  const endpoint = map.endpoint('endpoint');
  return {
    packageVersion: map.string('packageVersion', MAX_NAME_BYTES),
    instanceName: readInstanceName(map),
    incarnation: map.u64('incarnation'),
    rank,
    ...place,
    endpoint,
    rankEndpoints: readRankEndpoints(map, tpSize * ppSize * cpSize, rank, endpoint),
    agent: map.oneOf('agent', AGENTS),
    agentMetadata: map.bytes('agentMetadata', MAX_AGENT_METADATA_BYTES),
    pageTable: map.field('pageTable', readPageTable),
  };
}

function readInstanceName(map: DecodedMap): string {
  const name = map.string('instanceName', MAX_NAME_BYTES);
  const problem = instanceNameProblem(name);
  if (problem !== null) throw wireError('bad-string', `${map.pathOf('instanceName')} ${problem}`);
  return name;
}

/**
 * One endpoint per rank of the instance, no two alike, the sender's own at its rank. What a list may cause is checked where it is used
 * (`src/session/instance-identity.ts`); here it is only kept to the one form that reaches no file and no other transport.
 */
function readRankEndpoints(map: DecodedMap, rankCount: number, rank: number, endpoint: string): string[] {
  const path = map.pathOf('rankEndpoints');
  const endpoints = map.list('rankEndpoints', rankCount, (item, itemPath) => {
    if (typeof item !== 'string' || !isEndpoint(item)) {
      throw wireError('bad-endpoint', `${itemPath} must be tcp://host:port`);
    }
    return item;
  });
  if (endpoints.length !== rankCount) {
    throw wireError('bad-value', `${path} has ${endpoints.length} entries for ${rankCount} ranks`);
  }
  if (endpoints[rank] !== endpoint) {
    throw wireError('bad-value', `${path}[${rank}] must be the endpoint of the rank that sent it`);
  }
  if (new Set(endpoints).size !== rankCount) throw wireError('bad-value', `${path} names an endpoint twice`);
  return endpoints;
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
    rankEndpoints: [...info.rankEndpoints],
    agent: info.agent,
    agentMetadata: info.agentMetadata,
    pageTable: pageTableFields(info.pageTable),
  };
}
