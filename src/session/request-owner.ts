import type { LlmRequest } from '../executor/request.js';
import { instanceFinding } from './instance-identity.js';
import type { Peer } from './peer.js';

/** `owner`: this peer may ask for the request and cancel it. `unknown`: that shows once the rank that the request names is a peer. */
export type Standing = 'owner' | 'foreign' | 'unknown';

/**
 * Whether a request belongs to a peer. The parameters of the request say which instance generates (`genInfoEndpoint`): every rank of it may
 * speak of the request, nobody else. A peer is of that instance when the rank at the named endpoint, which proved to be there, publishes the
 * same one; that a peer lists the endpoint in its own proves nothing. A request that names nobody is whoever's asks first.
 *
 * @param peerAt the proven peer at an endpoint
 */
export function standingOf(request: LlmRequest, peer: Peer, peerAt: (endpoint: string) => Peer | null): Standing {
  const named = request.disagg?.genInfoEndpoint ?? null;
  if (named === null || named === peer.endpoint) return 'owner';
  if (!peer.info.rankEndpoints.includes(named)) return 'foreign';
  const rank = peerAt(named);
  if (rank === null) return 'unknown';
  return instanceFinding(rank.info, peer.info) === null ? 'owner' : 'foreign';
}
