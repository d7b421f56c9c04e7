// Writes the README's tables of figures from bench/results/<machine>/<bench>-<date>.json, so that no figure is ever typed.
//   node scripts/readme-figures.mjs           writes README.md
//   node scripts/readme-figures.mjs --check   exit code 1 when README.md differs from what would be written
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const RESULTS = join(ROOT, 'bench/results');

/** The newest result of each (machine, bench), by the date in the file's name. */
function newestResults(bench) {
  if (!existsSync(RESULTS)) return [];
  return readdirSync(RESULTS, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && entry.name !== 'local')
    .map((entry) => {
      const files = readdirSync(join(RESULTS, entry.name)).filter(
        (name) => name.startsWith(`${bench}-`) && name.endsWith('.json'),
      );
      return { machine: entry.name, file: files.sort().at(-1) };
    })
    .filter(({ file }) => file !== undefined)
    .sort((a, b) => a.machine.localeCompare(b.machine))
    .map(({ machine, file }) => ({
      machine,
      file,
      output: JSON.parse(readFileSync(join(RESULTS, machine, file), 'utf8')),
    }));
}

function table(header, rows) {
  return [
    `| ${header.join(' | ')} |`,
    `|${header.map(() => '---').join('|')}|`,
    ...rows.map((row) => `| ${row.join(' | ')} |`),
  ];
}

const ms = (value) => (value == null ? '-' : value >= 100 ? value.toFixed(0) : value.toFixed(1));
const link = (machine, file) => `[${basename(file)}](bench/results/${machine}/${file})`;
const where = ({ machine, file, output }) =>
  `${output.machine.cpu}, ${output.machine.cores} cores, ${output.machine.memoryGiB} GiB, Node ${output.machine.node}: ${link(machine, file)}`;

function ttftFigures() {
  return newestResults('ttft').flatMap((result) => {
    const { output } = result;
    const pace = output.settings.linkGbps == null ? 'not paced' : `link paced to ${output.settings.linkGbps} Gbit/s`;
    const rows = output.results.map((row) => [
      row.variant,
      row.promptTokens ?? 'trace',
      ms(row.ttftMs?.p50),
      ms(row.prefillMs?.p50),
      ms(row.transferMs?.p50),
      ms(row.exposedTailMs?.p50),
      row.hiddenShare == null ? '-' : `${Math.round(100 * row.hiddenShare)} %`,
      row.wrongBytes,
    ]);
    return [
      `${output.results[0]?.model ?? ''}, chunks of ${output.settings.chunk} tokens, agent ${output.settings.agent}, ${pace}; medians in ms.`,
      '',
      ...table(['variant', 'prompt', 'TTFT', 'prefill', 'transfer', 'exposed tail', 'hidden', 'wrong bytes'], rows),
      '',
      where(result),
      '',
    ];
  });
}

function transferFigures() {
  return newestResults('transfer').flatMap((result) => {
    const gbps = (row, name) =>
      row.gigabytesPerSecond[name] == null ? '-' : row.gigabytesPerSecond[name].p50.toFixed(1);
    const rows = result.output.results.map((row) => [
      `${row.pageBytes / 1024} KiB`,
      gbps(row, 'memcpy'),
      gbps(row, 'host'),
      gbps(row, 'nixl'),
    ]);
    return [
      'Scattered pages between two processes, DRAM, GB/s (median); `memcpy` copies the same pages inside one process.',
      '',
      ...table(['page', 'memcpy', 'host agent', 'NIXL over shared memory'], rows),
      '',
      where(result),
      '',
    ];
  });
}

function dispatchFigures() {
  return newestResults('dispatch').flatMap((result) => {
    const { results } = result.output;
    // Results from before there were rows of unequal blocks do not say which blocks they had.
    const sized = results.every((row) => row.senderTokensPerBlock !== undefined);
    const rows = results.map((row) => [
      row.moves,
      ...(sized ? [`${row.senderTokensPerBlock} → ${row.receiverTokensPerBlock}`] : []),
      row.jsThreadUs.p50.toFixed(1),
      row.jsThreadUs.p99.toFixed(1),
    ]);
    return [
      'What one slice costs the JavaScript thread, µs.',
      '',
      ...table(['moves of the slice', ...(sized ? ['tokens per block'] : []), 'p50', 'p99'], rows),
      '',
      where(result),
      '',
    ];
  });
}

const SECTIONS = { ttft: ttftFigures, transfer: transferFigures, dispatch: dispatchFigures };

/** README.md with every `<!-- figures:NAME -->` ... `<!-- /figures:NAME -->` filled from the results. */
export function updatedReadme() {
  let readme = readFileSync(join(ROOT, 'README.md'), 'utf8');
  for (const [name, figures] of Object.entries(SECTIONS)) {
    const begin = `<!-- figures:${name} -->`;
    const end = `<!-- /figures:${name} -->`;
    const from = readme.indexOf(begin);
    const to = readme.indexOf(end);
    if (from < 0 || to < from) continue;
    const lines = figures();
    const body = lines.length === 0 ? '' : `${lines.join('\n').trimEnd()}\n`;
    readme = `${readme.slice(0, from + begin.length)}\n${body}${readme.slice(to)}`;
  }
  return readme;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const updated = updatedReadme();
  if (process.argv.includes('--check')) {
    process.exitCode = updated === readFileSync(join(ROOT, 'README.md'), 'utf8') ? 0 : 1;
    if (process.exitCode === 1) process.stderr.write('README.md: figures differ from bench/results\n');
  } else {
    writeFileSync(join(ROOT, 'README.md'), updated);
  }
}
