import { ERROR_CODES } from '../errors.js';
import { REQUEST_TRANSITIONS } from '../executor/request-states.js';
import { RX_TRANSITIONS } from '../session/rx-session.js';
import { TX_TRANSITIONS } from '../session/tx-session.js';
import { FAILURE_REASONS } from './failure-reason.js';
import { REFUSAL_KINDS } from './refusals.js';

const SIDES = ['context', 'generation'] as const;
const ROLES = ['context', 'generation', 'aggregate'] as const;
const OUTCOMES = ['completed', 'failed', 'cancelled'] as const;
const PATHS = ['host', 'rdma', 'p2p', 'bounce', 'unknown'] as const;
const CODES = Object.keys(ERROR_CODES);
const SESSION_STATES = [...new Set([...keysOf(TX_TRANSITIONS.transitions), ...keysOf(RX_TRANSITIONS.transitions)])];

/** 0.5 ms to a minute. */
const SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
/** 4 KiB to 16 GiB. */
const BYTES = Array.from({ length: 12 }, (_, power) => 4096 * 4 ** power);

/** Values that a label can have. `null`: counted by names from the code, bounded in number; the rest is `other`. */
type LabelValues = readonly string[] | null;

/** One metric. */
export interface MetricDefinition {
  readonly type: 'histogram' | 'counter' | 'gauge';
  readonly name: string;
  readonly help: string;
  readonly labels: Readonly<Record<string, LabelValues>>;
  readonly buckets?: readonly number[];
}

/**
 * Every metric of this package, with the values of its labels: none grows with requests, peers or endpoints.
 * docs/observability.md and the Grafana board name the same ones; a test compares them.
 */
export const METRICS = {
  // Transfers, per rank.
  queueSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_queue_seconds',
    help: 'Time from the start of a transfer until every peer of it had come',
    labels: { side: SIDES },
    buckets: SECONDS,
  },
  transferSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_transfer_seconds',
    help: 'Time from the first slice to the end of a completed transfer, prefill between slices included',
    labels: { side: SIDES },
    buckets: SECONDS,
  },
  exposedTailSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_exposed_tail_seconds',
    help: 'Time from the first post of the last slice to the end of a completed transfer, at the context server',
    labels: {},
    buckets: SECONDS,
  },
  transferBytes: {
    type: 'histogram',
    name: 'kv_transceiver_transfer_bytes',
    help: 'KV bytes of a completed transfer at this rank',
    labels: { side: SIDES },
    buckets: BYTES,
  },
  sliceSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_slice_seconds',
    help: 'Time from the post of a slice to its last byte',
    labels: { path: PATHS },
    buckets: SECONDS,
  },
  sliceWaitSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_slice_wait_seconds',
    help: 'Time a slice waited to be posted: for the forward that computes it, and for slices before it',
    labels: { path: PATHS },
    buckets: SECONDS,
  },
  sliceBytes: {
    type: 'histogram',
    name: 'kv_transceiver_slice_bytes',
    help: 'KV bytes of a slice to one receiver',
    labels: { path: PATHS },
    buckets: BYTES,
  },
  transfers: {
    type: 'counter',
    name: 'kv_transceiver_transfers_total',
    help: 'Transfers that ended',
    labels: { side: SIDES, outcome: OUTCOMES },
  },
  transferFailures: {
    type: 'counter',
    name: 'kv_transceiver_transfer_failures_total',
    help: 'Failed transfers by class of error, and by the clock that ran out or who saw the failure',
    labels: { side: SIDES, code: CODES, reason: FAILURE_REASONS },
  },
  transferredBytes: {
    type: 'counter',
    name: 'kv_transceiver_transferred_bytes_total',
    help: 'KV bytes that arrived, those of transfers that failed later included',
    labels: { side: SIDES },
  },
  salvageableTokens: {
    type: 'counter',
    name: 'kv_transceiver_salvageable_tokens_total',
    help: 'Prompt tokens whose cache had arrived whole when their transfer failed',
    labels: {},
  },
  slices: {
    type: 'counter',
    name: 'kv_transceiver_slices_total',
    help: 'Slices to one receiver that ended',
    labels: { path: PATHS, status: ['transferred', 'failed', 'cancelled'] },
  },
  fallbacks: {
    type: 'counter',
    name: 'kv_transceiver_fallbacks_total',
    help: 'Things that go another way than they might, each counted once; the log says which and why',
    labels: { source: ['backend', 'config', 'agent'] },
  },
  framesRefused: {
    type: 'counter',
    name: 'kv_transceiver_frames_refused_total',
    help: 'Control frames that were not acted on',
    labels: {
      kind: [...REFUSAL_KINDS, 'refused'],
      reason: null,
    },
  },
  unprovenReleases: {
    type: 'counter',
    name: 'kv_transceiver_unproven_releases_total',
    help: 'Requests whose pages were released without proof that their writers had stopped',
    labels: { of: ['request'] },
  },
  badTraceparents: {
    type: 'counter',
    name: 'kv_transceiver_bad_traceparents_total',
    help: 'Trace contexts that were dropped because they are not valid',
    labels: { source: ['wire', 'request', 'coordinator'] },
  },
  events: {
    type: 'counter',
    name: 'kv_transceiver_events_total',
    help: 'Everything else that the transceiver counts, by its name in stats().counters',
    labels: { event: null },
  },
  bouncedBytes: {
    type: 'counter',
    name: 'kv_transceiver_bounced_bytes_total',
    help: 'Bytes gathered into the bounce arena to be sent, and scattered out of it',
    labels: { direction: ['gathered', 'scattered'] },
  },
  bounceRefusals: {
    type: 'counter',
    name: 'kv_transceiver_bounce_refusals_total',
    help: 'Parts of bounced slices that one side gave up on',
    labels: { direction: ['sent', 'received'] },
  },
  controlFrames: {
    type: 'counter',
    name: 'kv_transceiver_control_frames_total',
    help: 'Control frames carried',
    labels: { direction: ['sent', 'received'] },
  },
  controlBytes: {
    type: 'counter',
    name: 'kv_transceiver_control_bytes_total',
    help: 'Bytes of control frames carried',
    labels: { direction: ['sent', 'received'] },
  },
  controlDropped: {
    type: 'counter',
    name: 'kv_transceiver_control_frames_dropped_total',
    help: 'Control frames that never left, or never reached the transceiver',
    labels: { reason: null },
  },
  handshakesRefused: {
    type: 'counter',
    name: 'kv_transceiver_handshakes_refused_total',
    help: 'Connections that never came to carry frames',
    labels: { reason: null },
  },
  connectionsLost: {
    type: 'counter',
    name: 'kv_transceiver_connections_lost_total',
    help: 'Connections of the control plane that broke',
    labels: {},
  },
  sessions: {
    type: 'gauge',
    name: 'kv_transceiver_sessions',
    help: 'Live transfers by state',
    labels: { side: SIDES, state: SESSION_STATES },
  },
  retainedSessions: {
    type: 'gauge',
    name: 'kv_transceiver_retained_sessions',
    help: 'Transfers that have ended and whose pages may still be touched',
    labels: {},
  },
  pinnedRequests: {
    type: 'gauge',
    name: 'kv_transceiver_pinned_requests',
    help: 'Requests whose pages are pinned by a transfer',
    labels: {},
  },
  cacheSlots: {
    type: 'gauge',
    name: 'kv_transceiver_cache_slots',
    help: 'Slots of a layer group; pinned ones count once, also when their request owns them',
    labels: { group: null, state: ['free', 'reusable', 'pinned', 'offloaded'] },
  },
  cacheSlotCapacity: {
    type: 'gauge',
    name: 'kv_transceiver_cache_slot_capacity',
    help: 'Slots that a layer group has',
    labels: { group: null },
  },
  auxSlots: {
    type: 'gauge',
    name: 'kv_transceiver_aux_slots',
    help: 'Slots of the aux buffer',
    labels: { state: ['free', 'used'] },
  },
  arenaBytes: {
    type: 'gauge',
    name: 'kv_transceiver_arena_bytes',
    help: 'Bytes of the bounce arena; lost are those that an agent which is gone may still write; absent without one',
    labels: { state: ['free', 'used', 'lost'] },
  },
  arenaChunks: {
    type: 'gauge',
    name: 'kv_transceiver_arena_chunks',
    help: 'Chunks that peers send through the bounce arena: granted a region, waiting for one, in quarantine; absent without one',
    labels: { state: ['granted', 'waiting', 'quarantined'] },
  },
  peers: {
    type: 'gauge',
    name: 'kv_transceiver_peers',
    help: 'Peers by state',
    labels: { state: ['verified', 'accepted', 'greeting'] },
  },
  earlyRequests: {
    type: 'gauge',
    name: 'kv_transceiver_early_requests',
    help: 'Questions of receivers about requests that did not come yet',
    labels: {},
  },
  openReports: {
    type: 'gauge',
    name: 'kv_transceiver_open_reports',
    help: 'Final reports that their receivers did not acknowledge yet; one whose receiver is gone counts until kvTransferTimeoutMs is over',
    labels: {},
  },
  // The executor.
  timeToFirstTokenSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_time_to_first_token_seconds',
    help: 'Time from the arrival of a request to its first token, at the coordinator or at the server that generates',
    labels: { scope: ['coordinator', 'server'] },
    buckets: SECONDS,
  },
  prefillSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_prefill_seconds',
    help: 'Time from the first forward of a prompt to its first token',
    labels: {},
    buckets: SECONDS,
  },
  requestSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_request_seconds',
    help: 'Time from the submission of a request to its end at this server, whatever the outcome',
    labels: { role: ROLES },
    buckets: SECONDS,
  },
  stepSeconds: {
    type: 'histogram',
    name: 'kv_transceiver_step_seconds',
    help: 'Time of a step of the executor that ran a forward',
    labels: {},
    buckets: SECONDS,
  },
  requests: {
    type: 'counter',
    name: 'kv_transceiver_requests_total',
    help: 'Requests that ended at this server',
    labels: { role: ROLES, outcome: OUTCOMES },
  },
  requestFailures: {
    type: 'counter',
    name: 'kv_transceiver_request_failures_total',
    help: 'Failed requests by class of error',
    labels: { role: ROLES, code: CODES },
  },
  promptTokens: {
    type: 'counter',
    name: 'kv_transceiver_prompt_tokens_total',
    help: 'Prompt tokens of ended requests that this server computes, and how many of them its prefix cache had',
    labels: { source: ['reused', 'computed'] },
  },
  outputTokens: {
    type: 'counter',
    name: 'kv_transceiver_output_tokens_total',
    help: 'Tokens of ended requests that went to their users',
    labels: {},
  },
  executorRequests: {
    type: 'gauge',
    name: 'kv_transceiver_executor_requests',
    help: 'Live requests of the executor by state',
    labels: { state: keysOf(REQUEST_TRANSITIONS.transitions) },
  },
  // The coordinator.
  coordinatorRequests: {
    type: 'counter',
    name: 'kv_transceiver_coordinator_requests_total',
    help: 'Requests that ended at the coordinator',
    labels: { outcome: OUTCOMES },
  },
  coordinatorRetries: {
    type: 'counter',
    name: 'kv_transceiver_coordinator_retries_total',
    help: 'Further tries of requests',
    labels: {},
  },
  coordinatorLive: {
    type: 'gauge',
    name: 'kv_transceiver_coordinator_live_requests',
    help: 'Requests that some server still works on',
    labels: {},
  },
  coordinatorServers: {
    type: 'gauge',
    name: 'kv_transceiver_coordinator_servers',
    help: 'Servers by role and phase',
    labels: { role: SIDES, phase: ['ready', 'draining', 'down'] },
  },
} as const satisfies Record<string, MetricDefinition>;

export type MetricKey = keyof typeof METRICS;

function keysOf(record: object): string[] {
  return Object.keys(record);
}
