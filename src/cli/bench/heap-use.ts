import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Bytes of the JavaScript heap that are in use after a garbage collection. */
export function heapInUse(): number {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  // The first run calls finalizers, whose objects the second one takes.
  collect();
  collect();
  return process.memoryUsage().heapUsed;
}
