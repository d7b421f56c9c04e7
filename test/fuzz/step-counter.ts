/** Every read of a frame's bytes by the codec and by msgpack goes through one of these. */
const READS = [
  'getUint8',
  'getUint16',
  'getUint32',
  'getInt8',
  'getInt16',
  'getInt32',
  'getBigUint64',
  'getBigInt64',
  'getFloat32',
  'getFloat64',
] as const;

/**
 * Counts reads instead of time: a loop that does not end in proportion to its frame shows as reads, on any machine.
 * Patches DataView while `run` runs.
 */
export function countReads(run: () => void, limit: number): number {
  let reads = 0;
  const originals = READS.map((name) => [name, DataView.prototype[name]] as const);
  for (const [name, original] of originals) {
    Reflect.set(DataView.prototype, name, function (this: DataView, ...args: unknown[]) {
      if (++reads > limit) throw new RangeError(`more than ${limit} reads of one frame`);
      return Reflect.apply(original as (...values: unknown[]) => unknown, this, args);
    });
  }
  let thrown: { readonly error: unknown } | null = null;
  try {
    run();
  } catch (error) {
    thrown = { error };
  }
  for (const [name, original] of originals) Reflect.set(DataView.prototype, name, original);
  // Judged here: the code under test may turn what a read throws into an error of its own.
  if (reads > limit) throw new RangeError(`more than ${limit} reads of one frame`);
  if (thrown !== null) throw thrown.error;
  return reads;
}
