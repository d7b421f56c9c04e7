/** The command line asked for something that cannot be: one line that names the option and the remedy, exit code 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError';
}
