import type { TurnBudget } from './turn-budget.js';

/**
 * Does one thing after another, in portions: other events of the process come between. The first is done before this returns.
 * Why not a loop that looks at its budget alone: most of what an event costs can be in promises that it settles, which call back only once the
 *   loop waits, and then all of them in one turn. Here what each thing sets off counts with it.
 *
 * @param doNext does the next thing, whatever that is by then; must not throw. False: there was none
 */
export async function inPortions(turns: TurnBudget, doNext: () => boolean): Promise<void> {
  while (doNext()) {
    await promisesCalledBack();
    if (turns.isSpent()) await turns.nextTurn();
  }
}

/** Node runs a tick only when no promise has anything left to call. */
function promisesCalledBack(): Promise<void> {
  return new Promise((resolve) => process.nextTick(resolve));
}
