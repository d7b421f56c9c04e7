import { show } from './facts-sections.js';
import { type Html, html } from './html.js';
import type { AnyOutput } from './report-output.js';
import { table } from './table.js';

/** Cells longer than this are raw data, which is in the JSON. */
const LONGEST_CELL = 120;

/** The rows of any bench: each figure under its name in the JSON, percentiles and other groups of figures one column each. */
export function rowsSection({ results, ratios }: AnyOutput): Html {
  const rows = results.map((row) => new Map(flatten(row, '')));
  const names = [...new Set(rows.flatMap((row) => [...row.keys()]))];
  const isText = (name: string): boolean => rows.some((row) => typeof row.get(name) === 'string');
  return html`<section id="summary"><h2>Results</h2>
${table(
  'Results, under the names they have in the JSON',
  names.map((title) => ({ title, kind: isText(title) ? ('text' as const) : ('figure' as const) })),
  rows.map((row) => names.map((name) => (row.has(name) ? show(row.get(name)) : '-'))),
)}${Object.entries(ratios)
  .filter(([, bySubject]) => Object.keys(bySubject).length > 0)
  .map(([name, bySubject]) =>
    table(
      name,
      [{ title: 'of' }, { title: 'ratio' }],
      Object.entries(bySubject).map(([subject, value]) => [subject, show(value)]),
    ),
  )}</section>
`;
}

function flatten(row: object, prefix: string): readonly (readonly [string, unknown])[] {
  return Object.entries(row).flatMap(([key, value]: [string, unknown]): readonly (readonly [string, unknown])[] => {
    const name = `${prefix}${key}`;
    if (value === null || typeof value !== 'object') return [[name, value]];
    if (!Array.isArray(value)) return prefix === '' ? flatten(value, `${name}.`) : [];
    return show(value).length <= LONGEST_CELL && value.every((one) => typeof one !== 'object') ? [[name, value]] : [];
  });
}
