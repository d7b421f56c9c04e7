/** Failures that were reported for other systems, as schedules for this one. */
import { HANGS } from './a-hangs.js';
import { LEAKS } from './b-leaks.js';
import { WRONG_DATA } from './c-wrong-data.js';
import { TIMEOUTS } from './e-timeouts.js';
import { RESTARTS } from './f-restarts.js';
import { FOUND } from './found.js';
import { TRUST } from './gi-trust.js';
import { NOTED } from './notes.js';
import { RANKS } from './ranks.js';
import type { ScenarioGroup } from './scenario.js';
import { TRTLLM } from './trtllm.js';

export type { ByDesign, Expected, Scenario, ScenarioGroup } from './scenario.js';

export const SCENARIO_GROUPS: readonly ScenarioGroup[] = [
  HANGS,
  LEAKS,
  WRONG_DATA,
  TIMEOUTS,
  RESTARTS,
  TRUST,
  TRTLLM,
  RANKS,
  FOUND,
  NOTED,
];
