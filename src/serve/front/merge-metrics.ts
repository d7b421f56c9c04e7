import type { Clock } from '../../clock.js';
import { TurnBudget } from '../../turn-budget.js';

/** Metrics of one process, and the labels that tell its samples from those of others. */
export interface LabelledMetrics {
  readonly labels: Readonly<Record<string, string>>;
  /** Text of the Prometheus format. */
  readonly text: string;
}

/** All samples of one metric name; the format wants them together, under one description. */
interface Family {
  readonly description: string[];
  readonly samples: string[];
}

const DESCRIPTION = /^# (?:HELP|TYPE) ([a-zA-Z_:][\w:]*) /;
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$/;

/**
 * One text from those of several processes. Each sample gets the labels of its process, those apart that it has already: a name given twice
 * would spoil the whole text. What is no line of the format is left out, so that no process can spoil the others' metrics.
 * In turns of the event loop: there are thousands of lines.
 */
export async function mergeMetrics(sources: readonly LabelledMetrics[], clock: Clock): Promise<string> {
  const turns = new TurnBudget(clock);
  const families = new Map<string, Family>();
  const familyOf = (name: string): Family => {
    const family = families.get(name) ?? { description: [], samples: [] };
    families.set(name, family);
    return family;
  };
  for (const { labels, text } of sources) {
    const own = Object.entries(labels).map(([name, value]) => ({ name, text: `${name}=${JSON.stringify(value)}` }));
    let current = '';
    for (const line of text.split('\n')) {
      if (turns.isSpentBySmall()) await turns.nextTurn();
      const described = DESCRIPTION.exec(line)?.[1];
      if (described !== undefined) {
        const { description } = familyOf(described);
        // The first process describes; others of another version might do it otherwise.
        if (current !== described && description.length > 0) description.length = 0;
        current = described;
        description.push(line);
        continue;
      }
      const sample = SAMPLE.exec(line);
      if (sample === null) continue;
      const [, name = '', given = '', value = ''] = sample;
      // A histogram's samples have names of their own below its description.
      const family = familyOf(name.startsWith(current) && current !== '' ? current : name);
      const added = own.filter((label) => !`,${given}`.includes(`,${label.name}="`)).map((label) => label.text);
      family.samples.push(`${name}{${[...(given === '' ? [] : [given]), ...added].join(',')}} ${value}`);
    }
  }
  return [...families.values()]
    .filter(({ samples }) => samples.length > 0)
    .map(({ description, samples }) => `${[...description, ...samples].join('\n')}\n`)
    .join('');
}
