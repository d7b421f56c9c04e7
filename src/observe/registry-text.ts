import type { Registry } from 'prom-client';
import type { Clock } from '../clock.js';
import { TurnBudget } from '../turn-budget.js';

/** What `registry.metrics()` gives, a metric at a time: hundreds of series would hold up a process that has answers to send meanwhile. */
export async function registryText(registry: Registry, clock: Clock): Promise<string> {
  const turns = new TurnBudget(clock);
  const texts: string[] = [];
  for (const { name } of registry.getMetricsAsArray()) {
    texts.push(await registry.getSingleMetricAsString(name));
    if (turns.isSpent()) await turns.nextTurn();
  }
  return `${texts.join('\n\n')}\n`;
}
