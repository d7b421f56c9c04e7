import type * as read from '../option-types.js';
import { UsageError } from '../usage-error.js';

/** Two GPU numbers with a colon between them: the writer's and the receiver's. */
export const gpuPair: read.ValueReader<readonly [number, number]> = (option, text) => {
  const match = /^(\d+):(\d+)$/.exec(text.trim());
  if (match === null) throw new UsageError(`${option}: '${text}' is not two GPU numbers, as in 0:1`);
  return [Number(match[1]), Number(match[2])];
};
