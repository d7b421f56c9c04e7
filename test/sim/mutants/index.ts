/** Every seeded fault that the simulator must catch: `npm run sim -- --mutants`. */

import { EXECUTOR_MUTANTS } from './executor-mutants.js';
import type { Mutant } from './mutant.js';
import { NOTE_MUTANTS } from './note-mutants.js';
import { PROTOCOL_MUTANTS } from './protocol-mutants.js';
import { RANK_MUTANTS } from './rank-mutants.js';
import { RECEIVER_MUTANTS } from './receiver-mutants.js';
import { SENDER_MUTANTS } from './sender-mutants.js';

export type { Mutant } from './mutant.js';

export const MUTANTS: readonly Mutant[] = [
  ...SENDER_MUTANTS,
  ...NOTE_MUTANTS,
  ...RECEIVER_MUTANTS,
  ...PROTOCOL_MUTANTS,
  ...RANK_MUTANTS,
  ...EXECUTOR_MUTANTS,
];
