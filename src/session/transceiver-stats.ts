import type { BounceStats, NoteStats, TransferAgent } from '../agent/transfer-agent.js';
import type { CacheGroupStats, KvCacheManager } from '../cache/kv-cache-manager.js';
import type { Messenger } from '../wire/messenger.js';
import type { MessengerCounts } from '../wire/messenger-counters.js';
import type { AuxBuffer } from './aux-buffer.js';
import type { Counters } from './counters.js';
import type { PeerRegistry } from './peer-registry.js';
import type { Receiver } from './receiver.js';
import { RX_TRANSITIONS, type RxState } from './rx-session.js';
import type { Sender } from './sender.js';
import type { TransferLedger } from './transfer-ledger.js';
import type { FallbackNotice, TransferObservers } from './transfer-observer.js';
import { TX_TRANSITIONS, type TxState } from './tx-session.js';

/**
 * `verified`: it accepted our HELLO. `accepted`: only we accepted its. `greeting`: our HELLO is unanswered (one to a live peer counts here
 * too).
 */
export type PeerState = 'verified' | 'accepted' | 'greeting';

/** A snapshot of one transceiver: counts and bytes, as of now. JSON-serialisable. */
export interface TransceiverStats {
  /** Requests that this rank sends, ended ones included whose pages a write may still read. */
  readonly sendSessions: number;
  /** Requests that this rank receives, ended ones included whose pages are retained. */
  readonly receiveSessions: number;
  readonly sendSessionsByState: Readonly<Record<TxState, number>>;
  /** `completed`, `failed` and `cancelled` ones are retained: a writer has not said yet that it is done. */
  readonly receiveSessionsByState: Readonly<Record<RxState, number>>;
  /** Of both, those that have their outcome and not given up their pages. */
  readonly retainedSessions: number;
  /** Requests whose pages a transfer may still touch. */
  readonly held: number;
  readonly freeAuxSlots: number;
  readonly auxSlots: number;
  /** Names of the peers: instance, rank, endpoint. */
  readonly peers: readonly string[];
  readonly peersByState: Readonly<Record<PeerState, number>>;
  /** Questions about requests that did not come yet. */
  readonly earlyRequests: number;
  /** Final reports that their receivers did not acknowledge yet. */
  readonly openReports: number;
  /** Slots of each layer group of the cache manager, in its order. */
  readonly cache: readonly CacheGroupStats[];
  /** Of the agent's bounce arena; null without one, or where the agent cannot tell. */
  readonly bounce: BounceStats | null;
  /** Of the agent, which says reports to agents of the same machine by itself; null where it cannot. */
  readonly notes: NoteStats | null;
  /** Frames and bytes; null where the messenger does not count. */
  readonly messenger: MessengerCounts | null;
  /** What goes another way than it might, each once (I9). */
  readonly fallbacks: readonly FallbackNotice[];
  readonly observers: number;
  /** Since the transceiver was opened; docs/observability.md has them all. Only grow. */
  readonly counters: Readonly<Record<string, number>>;
}

/** What stats and dumps look at. They change nothing. */
export interface Inspected {
  readonly endpoint: string;
  readonly incarnation: bigint;
  readonly lifecycle: 'open' | 'closing' | 'closed';
  readonly nowMs: number;
  readonly sender: Sender;
  readonly receiver: Receiver;
  readonly peers: PeerRegistry;
  readonly ledger: TransferLedger;
  readonly counters: Counters;
  readonly fallbacks: readonly FallbackNotice[];
  readonly observers: TransferObservers;
  readonly agent: TransferAgent;
  readonly messenger: Messenger;
  readonly cache: KvCacheManager;
  readonly aux: AuxBuffer;
}

export function transceiverStats(seen: Inspected): TransceiverStats {
  const { sender, receiver, peers, ledger, aux, agent, messenger, cache } = seen;
  const { sessions: sending, early, openReports } = sender.inspected;
  const receiving = [...receiver.sessions];
  const verified = peers.peers.filter(({ greeted }) => greeted).length;
  return {
    sendSessions: sender.sessionCount,
    receiveSessions: receiver.sessionCount,
    sendSessionsByState: countStates(TX_TRANSITIONS.transitions, sending),
    receiveSessionsByState: countStates(RX_TRANSITIONS.transitions, receiving),
    retainedSessions: countEnded(sending) + countEnded(receiving),
    held: ledger.heldCount,
    freeAuxSlots: aux.freeCount,
    auxSlots: aux.slotCount,
    peers: peers.peers.map((peer) => peer.name),
    peersByState: { verified, accepted: peers.peers.length - verified, greeting: peers.greetingCount },
    earlyRequests: early,
    openReports,
    cache: cache.stats(),
    bounce: agent.bounceStats?.() ?? null,
    notes: agent.noteStats?.() ?? null,
    messenger: messenger.counts?.() ?? null,
    fallbacks: [...seen.fallbacks],
    observers: seen.observers.count,
    counters: seen.counters.snapshot(),
  };
}

function countEnded(sessions: readonly { readonly outcome: unknown }[]): number {
  return sessions.reduce((ended, { outcome }) => ended + (outcome === null ? 0 : 1), 0);
}

function countStates<S extends string>(
  states: Readonly<Record<S, unknown>>,
  sessions: readonly { readonly state: S }[],
): Record<S, number> {
  const counts = {} as Record<S, number>;
  for (const state in states) counts[state] = 0;
  for (const { state } of sessions) counts[state] += 1;
  return counts;
}
