import * as v8 from 'node:v8';
import { RequestClocks } from '../../../src/session/request-clocks.js';
import { RxSession } from '../../../src/session/rx-session.js';
import { RxWriter } from '../../../src/session/rx-writer.js';
import { SendTask } from '../../../src/session/send-task.js';
import { TxReceiver, TxSession } from '../../../src/session/tx-session.js';
import type { LiveInstances } from './server-messages.js';

const CLASSES = { RequestClocks, RxSession, RxWriter, SendTask, TxReceiver, TxSession };

/** Counts objects after a garbage collection; since Node 20.13, and not in the type definitions of earlier ones. */
const queryObjects = (
  v8 as unknown as { readonly queryObjects?: (type: unknown, options: { readonly format: 'count' }) => number }
).queryObjects;

/** How many objects of each session class are alive. Empty where this Node cannot tell. */
export function liveInstances(): LiveInstances {
  if (queryObjects === undefined) return {};
  return Object.fromEntries(
    Object.entries(CLASSES).map(([name, type]) => [name, queryObjects(type, { format: 'count' })]),
  );
}
