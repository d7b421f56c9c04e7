/** What a shell reports for a process that a closed pipe ended: 128 + SIGPIPE. */
const EXIT_CODE = 141;

/** Codes of writes to a pipe or terminal that nobody reads any more. */
const GONE = new Set(['EPIPE', 'EIO', 'ERR_STREAM_DESTROYED']);

/**
 * `kv-transceiver ... | head -1`: once nobody reads what is printed, the command ends in silence, with all that it started. A command that
 * knows how to stop (it listens for SIGTERM) does so in its own order; any other is ended at once.
 */
export function endWithoutReaders(): void {
  let isEnding = false;
  const onError = (error: NodeJS.ErrnoException): void => {
    if (!GONE.has(error.code ?? '')) throw error;
    if (isEnding) return;
    isEnding = true;
    // Whatever the command returns when it stops.
    process.once('exit', () => {
      process.exitCode = EXIT_CODE;
    });
    if (!process.emit('SIGTERM', 'SIGTERM')) process.exit(EXIT_CODE);
  };
  process.stdout.on('error', onError);
  process.stderr.on('error', onError);
}
