import type { Finding } from '../mapping/index.js';
import { explainGreeting } from '../mapping/index.js';
import type { RankInfo } from '../mapping/rank-info.js';
import type { PeerLink } from './peer-link.js';

/**
 * A rank whose HELLO was accepted, or that accepted ours, or both, and that proved to be at its endpoint. One object per process; only the registry
 * changes it. A process is its endpoint and its incarnation: another may have the same number, but not both.
 */
export interface Peer {
  /** For messages to people: instance, rank, endpoint. */
  readonly name: string;
  readonly endpoint: string;
  readonly incarnation: bigint;
  readonly info: RankInfo;
  /** Its data overlaps ours. One that does not is only good for what it says of its instance. */
  readonly overlaps: boolean;
  /** How to write into its pages: there once its HELLO was accepted, if it overlaps. */
  link: PeerLink | null;
  /** It accepted our HELLO, so that it can write into ours. */
  greeted: boolean;
}

export function isSameProcess(a: Peer | null, b: Peer | null): boolean {
  return a !== null && b !== null && a.endpoint === b.endpoint && a.incarnation === b.incarnation;
}

export function peerName(info: RankInfo): string {
  return `${info.instanceName} rank ${info.rank} at ${info.endpoint}`;
}

export function newPeer(
  info: RankInfo,
  { overlaps, link, greeted }: Pick<Peer, 'overlaps' | 'link' | 'greeted'>,
): Peer {
  return {
    name: peerName(info),
    endpoint: info.endpoint,
    incarnation: info.incarnation,
    info,
    overlaps,
    link,
    greeted,
  };
}

/** What was found, by this rank and the other: HELLO and HELLO_ACK ask the same, and so does each repeat. */
const found = new WeakMap<RankInfo, WeakMap<RankInfo, readonly Finding[]>>();

/** Ranks of instances that fit may greet each other whether or not they share anything: one rank speaks for its instance. */
export function findingsAgainst(self: RankInfo, peer: RankInfo): readonly Finding[] {
  let known = found.get(self);
  if (known === undefined) {
    known = new WeakMap();
    found.set(self, known);
  }
  let findings = known.get(peer);
  if (findings === undefined) {
    findings = explainGreeting(peer, self);
    known.set(peer, findings);
  }
  return findings;
}

export function incompatible(findings: readonly Finding[]): string {
  const fields = findings.map((f) => `${f.field}: ${f.a} against ${f.b}, ${f.verdict} (${f.whichSideToChange})`);
  return `incompatible KV cache: ${fields.join('; ')}`;
}
