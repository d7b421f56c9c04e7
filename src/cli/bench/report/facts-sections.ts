import type { Check, TakenPath } from '../output-contract.js';
import { type Content, type Html, html } from './html.js';
import type { AnyOutput } from './report-output.js';
import { facts, table } from './table.js';

export function pathsSection({ paths }: AnyOutput): Html | null {
  if (paths === undefined || paths.length === 0) return null;
  return html`<section id="paths"><h2>Paths and their reasons</h2>
${table(
  'Which way slices of each context rank took, as the agent explains it',
  [
    { title: 'rank' },
    { title: 'to', kind: 'text' },
    { title: 'path', kind: 'text' },
    { title: 'because', kind: 'text' },
    { title: 'copied by', kind: 'text' },
    { title: 'other paths', kind: 'text' },
  ],
  paths.map((path) => [path.rank, path.peer, path.path, path.reason, copyOf(path), othersOf(path)]),
)}${paths.flatMap(({ advice = [] }) => advice.map((line) => html`<p>${line}</p>\n`))}</section>
`;
}

function copyOf({ copy }: TakenPath): Content {
  if (copy === undefined) return '';
  return `${copy.means}: ${copy.reason}${copy.remedy === null ? '' : `; ${copy.remedy}`}`;
}

function othersOf({ alternatives = [] }: TakenPath): Content {
  return alternatives.map(
    ({ path, isAvailable, reason, estimatedUs }) =>
      html`<div>${path}: ${reason}${isAvailable && estimatedUs > 0 ? ` (about ${Math.round(estimatedUs)} µs)` : ''}</div>`,
  );
}

export function checksSection({ checks }: AnyOutput): Html | null {
  if (checks.length === 0) return null;
  const failed = checks.filter(({ met, judged }) => judged && !met).length;
  return html`<section id="checks"><h2>Checks</h2>
<p class="${failed === 0 ? 'good' : 'alarm'}">${failed === 0 ? 'Every check that decides the exit code holds.' : `${failed} checks that decide the exit code do not hold.`}</p>
${table(
  'What the bench tested on its own figures',
  [
    { title: 'check' },
    { title: 'of', kind: 'text' },
    { title: 'value' },
    { title: 'bound' },
    { title: 'met', kind: 'text' },
    { title: 'decides', kind: 'text' },
  ],
  checks.map(checkRow),
)}</section>
`;
}

function checkRow({ name, subject, value, relation, bound, met, judged }: Check): readonly Content[] {
  return [name, subject, show(value), `${relation} ${show(bound)}`, met ? 'yes' : 'NO', judged ? 'yes' : 'no'];
}

export function settingsSection(output: AnyOutput): Html {
  const { cpu, cores, memoryGiB, kernel, node, gpus, nixl } = output.machine;
  return html`<section id="settings"><h2>Settings and machine</h2>
<h3>Machine</h3>
${facts([
  ['processor', `${cpu}, ${cores} cores`],
  ['memory', `${memoryGiB} GiB`],
  ['kernel', kernel],
  ['Node', node],
  [
    'GPUs',
    gpus.length === 0 ? 'none' : gpus.map(({ name, driver, link }) => `${name} (${driver}, ${link})`).join('; '),
  ],
  ['NIXL', nixl === null ? 'none' : `${nixl.version}, ${nixl.path}`],
])}<h3>Settings</h3>
${facts(Object.entries(output.settings).map(([name, value]) => [name, value === null ? 'default' : show(value)]))}</section>
`;
}

/** A value as one line of text. */
export function show(value: unknown): string {
  if (typeof value === 'number') return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
  if (typeof value === 'string') return value;
  if (Array.isArray(value)) return value.map(show).join(', ');
  if (value === null || value === undefined) return '-';
  if (typeof value === 'object') {
    return Object.entries(value)
      .map(([name, one]) => `${name} ${show(one)}`)
      .join(', ');
  }
  return String(value);
}
