/**
 * SIGTERM or SIGINT: the command ends in its own order; a second one: at once.
 * @param onNow must not wait; the process exits after it
 */
export function onEndSignals(onFirst: () => void, onNow: () => void): void {
  let seen = false;
  const listener = (signal: 'SIGTERM' | 'SIGINT'): void => {
    if (seen) {
      onNow();
      process.exit(signal === 'SIGTERM' ? 143 : 130);
    }
    seen = true;
    onFirst();
  };
  process.on('SIGTERM', listener);
  process.on('SIGINT', listener);
}
