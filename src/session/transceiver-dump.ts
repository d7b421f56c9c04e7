import type { RxSession } from './rx-session.js';
import type { RxWriter } from './rx-writer.js';
import type { SendTask } from './send-task.js';
import { type Inspected, type PeerState, type TransceiverStats, transceiverStats } from './transceiver-stats.js';
import type { HoldState } from './transfer-ledger.js';
import type { TxReceiver, TxSession } from './tx-session.js';

const DEFAULT_MAX_ENTRIES = 100;
/** Of one session: there are as many as ranks on the other side. */
const MAX_ENDS = 32;
const MAX_TEXT = 300;

/** Ms that each clock of a request has left, negative when it is over; null for one that does not run. */
export interface ClocksLeft {
  readonly queueMs: number | null;
  readonly progressMs: number | null;
  readonly transferMs: number | null;
}

/** What both kinds of session say of themselves. */
export interface SessionDump {
  /** What both servers call the request. */
  readonly rid: string;
  /** What this server calls it. */
  readonly request: number;
  readonly state: string;
  /** Null while it is open. A session with an outcome retains its pages. */
  readonly outcome: string | null;
  readonly errorCode: string | null;
  readonly error: string | null;
  readonly ageMs: number;
  readonly promptTokens: number;
  readonly clocksLeft: ClocksLeft;
  /** Our aux slot; null without one. */
  readonly auxSlot: number | null;
}

/** One receiver of a send session. Bytes count KV pages. */
export interface ReceiverDump {
  readonly peer: string;
  /** Hexadecimal. */
  readonly ticket: string;
  readonly tasks: Readonly<Record<string, number>>;
  readonly aux: string | null;
  readonly bytesPlanned: number;
  readonly bytesDone: number;
  readonly drained: boolean;
}

/** A request that is sent. */
export interface SendDump extends SessionDump {
  readonly slices: number;
  readonly lastSliceSubmitted: boolean;
  /** Null while none has asked, who says how many there are. */
  readonly expectedReceivers: number | null;
  readonly receivers: readonly ReceiverDump[];
  readonly receiversLeftOut: number;
}

/** One writer of a receive session. */
export interface WriterDump {
  readonly rank: number;
  readonly endpoint: string;
  readonly ticket: string;
  readonly isExpected: boolean;
  readonly asked: boolean;
  readonly accepted: boolean;
  readonly slices: number;
  readonly lastSliceSeen: boolean;
  readonly outcome: string | null;
  readonly bytesExpected: number;
  readonly bytesReported: number;
  readonly drained: boolean;
  /** Null before it was asked. */
  readonly silentMs: number | null;
}

/** A request that is received. */
export interface ReceiveDump extends SessionDump {
  readonly infoEndpoint: string;
  /** When pages are released without proof; null while the outcome is open. */
  readonly releaseInMs: number | null;
  readonly writers: readonly WriterDump[];
  readonly writersLeftOut: number;
}

/** A peer, or whom this rank greets. */
export interface PeerDump {
  readonly name: string;
  readonly endpoint: string;
  readonly incarnation: string;
  readonly state: PeerState;
  readonly overlaps: boolean;
  /** Whether its memory is loaded, so that this rank can write there. */
  readonly isLinked: boolean;
  readonly silentMs: number;
}

/** Everything live in one transceiver, bounded in size. JSON-serialisable; lists are in order of arrival, holds by the number of their request. */
export interface TransceiverDump {
  readonly endpoint: string;
  readonly incarnation: string;
  readonly lifecycle: 'open' | 'closing' | 'closed';
  readonly stats: TransceiverStats;
  readonly send: readonly SendDump[];
  readonly receive: readonly ReceiveDump[];
  /** Pins: requests whose pages a transfer of this rank may touch. */
  readonly holds: readonly { readonly request: number; readonly state: HoldState; readonly isShared: boolean }[];
  readonly peers: readonly PeerDump[];
  /** Entries beyond the bound of each list. */
  readonly leftOut: { readonly send: number; readonly receive: number; readonly holds: number; readonly peers: number };
}

export function transceiverDump(seen: Inspected, maxEntries = DEFAULT_MAX_ENTRIES): TransceiverDump {
  const { sender, receiver, ledger, peers, nowMs } = seen;
  const most = Math.max(0, Math.floor(maxEntries));
  const left = (count: number): number => Math.max(0, count - most);
  const stats = transceiverStats(seen);
  return {
    endpoint: seen.endpoint,
    incarnation: hex(seen.incarnation),
    lifecycle: seen.lifecycle,
    stats: { ...stats, peers: stats.peers.slice(0, most), fallbacks: stats.fallbacks.slice(0, most) },
    send: sender.inspected.sessions.slice(0, most).map((session) => sendDump(session, nowMs)),
    receive: [...receiver.sessions].slice(0, most).map((session) => receiveDump(session, nowMs)),
    holds: [...ledger.holdStates]
      .sort(([a], [b]) => a - b)
      .slice(0, most)
      .map(([request, state]) => ({ request, state, isShared: ledger.isShared(request) })),
    peers: peers.peers.slice(0, most).map((peer) => ({
      name: peer.name,
      endpoint: peer.endpoint,
      incarnation: hex(peer.incarnation),
      state: peer.greeted ? 'verified' : 'accepted',
      overlaps: peer.overlaps,
      isLinked: peer.link !== null,
      silentMs: peers.silentMs(peer),
    })),
    leftOut: {
      send: left(sender.sessionCount),
      receive: left(receiver.sessionCount),
      holds: left(ledger.heldCount),
      peers: left(peers.peers.length),
    },
  };
}

function sendDump(session: TxSession, nowMs: number): SendDump {
  const receivers = [...session.receivers.values()];
  return {
    ...sessionDump(session, session.createdAtMs, session.auxSlot, nowMs),
    slices: session.slices.length,
    lastSliceSubmitted: session.lastSliceSubmitted,
    expectedReceivers: session.expectedReceivers?.size ?? null,
    receivers: receivers.slice(0, MAX_ENDS).map(receiverDump),
    receiversLeftOut: Math.max(0, receivers.length - MAX_ENDS),
  };
}

function receiverDump(receiver: TxReceiver): ReceiverDump {
  return {
    peer: receiver.peer.name,
    ticket: hex(receiver.ticket),
    tasks: countTasks(receiver.tasks),
    aux: receiver.auxTask?.state ?? null,
    bytesPlanned: receiver.tasks.reduce((sum, { bytesPlanned }) => sum + bytesPlanned, 0),
    bytesDone: receiver.bytesDone,
    drained: receiver.drained,
  };
}

function receiveDump(session: RxSession, nowMs: number): ReceiveDump {
  const { writers, expected, releaseAtMs } = session;
  return {
    ...sessionDump(session, session.startedAtMs, session.auxSlot < 0 ? null : session.auxSlot, nowMs),
    infoEndpoint: session.infoEndpoint,
    releaseInMs: releaseAtMs === null ? null : releaseAtMs - nowMs,
    writers: writers.slice(0, MAX_ENDS).map((writer) => writerDump(writer, expected.includes(writer), nowMs)),
    writersLeftOut: Math.max(0, writers.length - MAX_ENDS),
  };
}

function writerDump(writer: RxWriter, isExpected: boolean, nowMs: number): WriterDump {
  return {
    rank: writer.rank,
    endpoint: writer.endpoint,
    ticket: hex(writer.ticket),
    isExpected,
    asked: writer.asked,
    accepted: writer.accepted,
    slices: writer.sliceCount,
    lastSliceSeen: writer.lastSliceSeen,
    outcome: writer.outcome,
    bytesExpected: writer.bytesExpected,
    bytesReported: writer.reportedBytes,
    drained: writer.drained,
    silentMs: writer.asked ? nowMs - writer.heardAtMs : null,
  };
}

function sessionDump(
  { rid, request, state, outcome, error, clocks }: TxSession | RxSession,
  startedAtMs: number,
  auxSlot: number | null,
  nowMs: number,
): SessionDump {
  const left = clocks.left(nowMs);
  return {
    rid: rid.toString(),
    request: request.id,
    state,
    outcome,
    errorCode: error?.code ?? null,
    error: error === null ? null : error.message.slice(0, MAX_TEXT),
    ageMs: nowMs - startedAtMs,
    promptTokens: request.promptTokens.length,
    clocksLeft: { queueMs: left.queue, progressMs: left.progress, transferMs: left.transfer },
    auxSlot,
  };
}

function countTasks(tasks: readonly SendTask[]): Record<string, number> {
  const counts: Record<string, number> = {};
  for (const { state } of tasks) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

function hex(value: bigint): string {
  return value.toString(16).padStart(16, '0');
}
