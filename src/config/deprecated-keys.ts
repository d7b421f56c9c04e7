/** Settings of other stacks that operators' files still have: accepted, without effect, and each says what to use instead. */
export const DEPRECATED_KEYS: ReadonlyMap<string, string> = new Map([
  ['agentBounceBufferEnable', 'set kvCacheBounceSizeMb to the size of the arena, or to 0 for none'],
  ['agentBounceParams', 'use bounce with kvCacheBounceSizeMb'],
  ['transceiverRuntime', 'there is one runtime; remove it'],
  ['kvTransferSenderFutureTimeoutMs', 'nothing here waits in slices; kvTransferTimeoutMs bounds a transfer'],
  ['kvTransferPollIntervalMs', 'completions are reported without polling; remove it'],
]);
