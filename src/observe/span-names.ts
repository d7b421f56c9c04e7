/** Names of the spans; docs/observability.md has the same ones, and a test compares them. */
export const SPANS = {
  /** A request at the coordinator. */
  coordinator: 'kv_transceiver.request',
  /** A request at a server's executor, by its role. */
  context: 'kv_transceiver.context',
  generation: 'kv_transceiver.generation',
  aggregate: 'kv_transceiver.aggregate',
  /** Its transfer at that server. */
  send: 'kv_transceiver.send',
  receive: 'kv_transceiver.receive',
  /** One slice to one receiver, child of `send`. */
  slice: 'kv_transceiver.slice',
} as const;

/** Names of the attributes. */
export const ATTRIBUTES = {
  rid: 'kv_transceiver.rid',
  request: 'kv_transceiver.request_id',
  outcome: 'kv_transceiver.outcome',
  attempts: 'kv_transceiver.attempts',
  promptTokens: 'kv_transceiver.prompt_tokens',
  reusedTokens: 'kv_transceiver.reused_tokens',
  outputTokens: 'kv_transceiver.output_tokens',
  salvageableTokens: 'kv_transceiver.salvageable_tokens',
  bytes: 'kv_transceiver.bytes',
  slices: 'kv_transceiver.slices',
  exposedTail: 'kv_transceiver.exposed_tail_ms',
  pipelined: 'kv_transceiver.pipelined',
  peer: 'kv_transceiver.peer',
  path: 'kv_transceiver.path',
  chunk: 'kv_transceiver.chunk',
  beginBlock: 'kv_transceiver.begin_block',
  endBlock: 'kv_transceiver.end_block',
  isLast: 'kv_transceiver.is_last',
  /** Of OpenTelemetry's own conventions: the ERR_KVT_* code. */
  error: 'error.type',
  remoteError: 'kv_transceiver.remote_error',
} as const;

/** Names of the events inside spans. */
export const SPAN_EVENTS = {
  peersArrived: 'peers arrived',
  prefillStarted: 'prefill started',
  prefillDone: 'prefill done',
  firstToken: 'first token',
  posted: 'posted',
} as const;
