// The results of the GPU machine whose figures the documents show, and how a figure is read from one.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Two H200 joined by NVLink. */
export const FOLDER = 'bench/results/h200-x2';

/** A result of the committed ones by its file's name; null where there is none. */
export function committed(file) {
  const path = join(ROOT, FOLDER, file);
  return existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : null;
}

/** As a document under docs/ writes it. */
export const link = (file) => `[${file}](../${FOLDER}/${file})`;

/** A build of sources that were not committed says so. */
export const shortCommit = (commit) => commit.replace(/^([0-9a-f]{7})[0-9a-f]*/, '$1');
export const commitOf = ({ commit }) =>
  commit === undefined ? 'which names no commit' : `commit ${shortCommit(commit)}`;

/** Files of the folder that do not say what they were built from. */
export function filesWithoutCommit() {
  const folder = join(ROOT, FOLDER);
  if (!existsSync(folder)) return [];
  return readdirSync(folder).filter((file) => {
    if (!file.endsWith('.json')) return !/\bcommit [0-9a-f]{7}/.test(readFileSync(join(folder, file), 'utf8'));
    const output = committed(file);
    return (output.commit ?? output.packed?.commit) === undefined;
  });
}

/** The smallest value that so large a share of the values does not exceed. */
export const quantile = (values, share) =>
  [...values].sort((a, b) => a - b)[Math.max(0, Math.ceil(share * values.length) - 1)];

export const percent = (share, digits = 0) => (share == null ? '-' : `${(100 * share).toFixed(digits)} %`);

export const rowOf = (output, lane, pageBytes, kind = 'pages') =>
  output?.results.find((row) => row.lane === lane && row.pageBytes === pageBytes && row.kind === kind);
export const speedOf = (row) => row?.gigabytesPerSecond?.p50;

/** Benches in C++ wrote bare rows before their results were stamped. */
export const rowsOf = (output) => (Array.isArray(output) ? output : output.results);

export function table(header, rows) {
  return [
    `| ${header.join(' | ')} |`,
    `|${header.map(() => '---').join('|')}|`,
    ...rows.map((row) => `| ${row.join(' | ')} |`),
  ];
}
