/** Of each half of the young generation, in MiB. Node's default is 16. */
const SEMI_SPACE_MIB = 4;

/**
 * Node's arguments for a process whose event loop may not stand still: a pause of the garbage collector is as long as what is alive among the
 * objects made since the last one, so that half the room makes it half as long, and twice as many.
 * @param own this process's, which its children have too. Who has set the size, there or in NODE_OPTIONS, keeps it
 */
export function workerArguments(
  own: readonly string[] = process.execArgv,
  { NODE_OPTIONS: options = '' }: NodeJS.ProcessEnv = process.env,
): string[] {
  const isSet = [...own, options].some((text) => /semi[-_]space[-_]size/.test(text));
  return isSet ? [...own] : [...own, `--max-semi-space-size=${SEMI_SPACE_MIB}`];
}
