// Writes the figures of README.md, docs/bench.md and docs/gpu.md from bench/results/<machine>, so that no figure is ever typed.
//   node scripts/readme-figures.mjs           writes them
//   node scripts/readme-figures.mjs --check   exit code 1 when one differs from what would be written
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gpuProofs, pathCosts } from './gpu-figures.mjs';
import { FILES } from './gpu-runs.mjs';

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
    // Rows of slices; those of observers have no moves.
    const results = result.output.results.filter((row) => row.moves !== undefined);
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

/** A replay of a whole trace; its JSON is kept without the samples of the requests. */
function traceFigures() {
  return newestResults('trace').flatMap((result) => {
    const { results, settings } = result.output;
    const rows = results.map((row) => [
      row.variant,
      `${row.completed} of ${row.requests}`,
      ms(row.ttftMs.p50),
      ms(row.ttftMs.p90),
      ms(row.ttftMs.p99),
      ms(row.tbtMs.p50),
      percent(row.goodput.share, 1),
      percent(row.contextHitShare, 1),
      row.wrongBytes,
    ]);
    const seconds = results.reduce((sum, row) => sum + row.durationMs, 0) / 1000;
    return [
      `${basename(settings.trace)}, ${settings.speedUp} x as fast, lengths x ${settings.lengthScale}, in ${seconds.toFixed(0)} s of replay; times in ms.`,
      '',
      ...table(['variant', 'done', 'TTFT p50', 'p90', 'p99', 'TBT p50', 'good', 'hit', 'wrong bytes'], rows),
      '',
      where(result).replace('](bench/', '](../bench/'),
      '',
    ];
  });
}

/** These results of every machine that has them; GPU runs are not dated. */
function resultsNamed(files) {
  if (!existsSync(RESULTS)) return [];
  return readdirSync(RESULTS, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && entry.name !== 'local')
    .flatMap(({ name: machine }) =>
      files
        .filter((file) => existsSync(join(RESULTS, machine, file)))
        .map((file) => ({
          machine,
          file,
          output: JSON.parse(readFileSync(join(RESULTS, machine, file), 'utf8')),
        })),
    );
}

const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.ceil(share * values.length) - 1];
const percent = (share, digits = 0) => (share == null ? '-' : `${(100 * share).toFixed(digits)} %`);
const onGpus = ({ machine, file, output }) => {
  const gpus = output.machine.gpus.map(({ name }) => name);
  return `${gpus.length} x ${gpus[0]}, commit ${output.commit.slice(0, 7)}: ${link(machine, file)}`;
};

const ahead = ({ beforeEvent, behindEventMs }) =>
  beforeEvent === undefined ? '' : `, in ${beforeEvent} of ${behindEventMs.length} before the event was reached`;

function deviceTransferFigures() {
  return resultsNamed(Object.values(FILES.transfer)).flatMap((result) => {
    const { output } = result;
    if (output.settings.gpus[0] === output.settings.gpus[1]) return [];
    const lanes = [...new Set(output.results.map(({ lane }) => lane))];
    const kinds = [...new Set(output.results.map((row) => `${row.kind} ${row.pageBytes}`))];
    const rows = kinds.map((kind) => {
      const own = output.results.filter((row) => `${row.kind} ${row.pageBytes}` === kind);
      const first = own[0];
      const cells = lanes.map((lane) => {
        const row = own.find((other) => other.lane === lane);
        return row === undefined ? '-' : `${row.gigabytesPerSecond.p50.toFixed(1)} (${percent(row.shareOfRoof, 1)})`;
      });
      const what =
        first.kind === 'split'
          ? `${first.pageBytes / 1024} KiB pieces of larger pages`
          : `${first.pageBytes / 1024} KiB pages`;
      return [what, `${first.bytes / 2 ** 20} MiB`, first.roofGigabytesPerSecond.p50.toFixed(0), ...cells];
    });
    const { slices, aborts } = output;
    const times = [
      `A slice of 2,048 pages costs the JS thread ${quantile(slices.submitUs, 0.5).toFixed(1)} µs and the progress thread ${quantile(slices.postingUs, 0.5).toFixed(1)} µs;`,
      `from a CUDA event to the end of a page queued behind it: ${quantile(slices.eventToPageUs, 0.5).toFixed(1)} µs (medians).`,
    ];
    if (aborts != null) {
      times.push(
        `Pages of slices cancelled under way are free after ${quantile(aborts.freeMs, 0.99).toFixed(1)} ms (p99 of ${aborts.freeMs.length}), ` +
          `${aborts.wrongBytes} bytes land in them afterwards; of slices queued behind an event after ` +
          `${quantile(aborts.behindEventMs, 0.99).toFixed(2)} ms${ahead(aborts)}.`,
      );
    }
    return [
      `Scattered pages between two GPUs in slices of ${output.settings.slicePages.toLocaleString('en-US')}, GB/s (median) and share of one contiguous copy of the same bytes; \`p2p-16\` copies with 16 blocks.`,
      '',
      ...table(['what', 'moved', 'contiguous', ...lanes], rows),
      '',
      times.join(' '),
      '',
      onGpus(result),
      '',
    ];
  });
}

/** The arena's own run: slices through `bounce`, pages of one layer beside pieces of many. */
function bounceFigures() {
  return resultsNamed([FILES.bounceTransfer]).flatMap((result) => {
    const { output } = result;
    const lanes = [...new Set(output.results.map(({ lane }) => lane))];
    const rows = [...new Set(output.results.map((row) => `${row.kind} ${row.pageBytes}`))].map((kind) => {
      const own = output.results.filter((row) => `${row.kind} ${row.pageBytes}` === kind);
      const first = own[0];
      const cells = lanes.map((lane) => {
        const row = own.find((other) => other.lane === lane);
        return row === undefined ? '-' : `${row.gigabytesPerSecond.p50.toFixed(1)} (${percent(row.shareOfRoof, 1)})`;
      });
      const what = first.kind === 'layers' ? 'pieces of many layers' : 'pages of one layer';
      return [
        `${first.pageBytes / 1024} KiB ${what}`,
        `${first.bytes / 2 ** 20} MiB`,
        first.roofGigabytesPerSecond.p50.toFixed(0),
        ...cells,
        own.reduce((sum, row) => sum + row.wrongBytes, 0),
      ];
    });
    const { emptyArena, aborts } = output;
    const times = [
      `A slice of one page through an empty arena takes ${quantile(emptyArena.busyUs, 0.5).toFixed(0)} µs right after another, ` +
        `${quantile(emptyArena.idleUs, 0.5).toFixed(0)} µs after a pause (medians).`,
    ];
    if (aborts != null) {
      times.push(
        `After a cancel under way the writer's pages are free in ${quantile(aborts.freeMs, 0.99).toFixed(1)} ms, ` +
          `the receiver's in ${quantile(aborts.receiverFreeMs, 0.99).toFixed(1)} ms (p99 of ${aborts.freeMs.length}); ` +
          `${aborts.wrongBytes} bytes land in them afterwards.`,
      );
    }
    return [
      'The same through the bounce arena (gathered, one NIXL write a chunk, scattered), GB/s (median) and share of one contiguous copy; `bounce-16` gathers and scatters with 16 blocks.',
      '',
      ...table(['what', 'moved', 'contiguous', ...lanes, 'wrong bytes'], rows),
      '',
      times.join(' '),
      '',
      onGpus(result),
      '',
    ];
  });
}

function gpuTtftFigures() {
  const found = resultsNamed(FILES.ttft)
    .flatMap((result) => result.output.results.map((row) => ({ result, row })))
    .filter(({ row }) => row.variant === 'pipelined')
    .sort((a, b) => a.row.model.localeCompare(b.row.model) || a.row.promptTokens - b.row.promptTokens);
  if (found.length === 0) return [];
  const rows = found.map(({ result, row }) => [
    row.model,
    row.promptTokens,
    row.chunkTokens,
    row.requests,
    ms(row.prefillMs.p50),
    ms(row.lastSliceMs.p50),
    ms(row.exposedTailMs.p50),
    (row.exposedTailMs.p50 / row.lastSliceMs.p50).toFixed(2),
    row.wrongBytes,
    link(result.machine, result.file),
  ]);
  return [
    'Pipelined prefill on one GPU (its matrix products by cuBLAS, then its pages) to a server on another; medians in ms. The last slice counts from the end of its chunk.',
    '',
    ...table(
      [
        'model',
        'prompt',
        'chunk',
        'requests',
        'prefill',
        'last slice',
        'exposed tail',
        'tail / slice',
        'wrong bytes',
        'result',
      ],
      rows,
    ),
    '',
  ];
}

function interferenceFigures() {
  const rows = resultsNamed(FILES.interference).flatMap((result) =>
    result.output.results.map((row) => [
      row.chunkTokens,
      row.path,
      row.variant.startsWith('p2p-') ? row.variant.split(' ')[0].slice(4) : '-',
      row.load,
      row.gigabytesPerSecond.toFixed(1),
      ms(row.aloneMs.p50),
      ms(row.prefillMs.p50),
      percent(row.slowDown.p50, 1),
      link(result.machine, result.file),
    ]),
  );
  if (rows.length === 0) return [];
  return [
    "What transfers cost the prefill beside them (llama-3.1-8b, four chunks): `own` moves each chunk's pages behind its event, `saturating` keeps the path busy all the time.",
    '',
    ...table(['chunk', 'path', 'blocks', 'load', 'GB/s', 'alone ms', 'beside ms', 'slow-down', 'result'], rows),
    '',
  ];
}

const SECTIONS = {
  ttft: ttftFigures,
  transfer: transferFigures,
  dispatch: dispatchFigures,
  'gpu-transfer': deviceTransferFigures,
  'gpu-bounce': bounceFigures,
  'gpu-ttft': gpuTtftFigures,
  'gpu-interference': interferenceFigures,
};

const DOCUMENTS = {
  'README.md': SECTIONS,
  'docs/bench.md': { trace: traceFigures },
  'docs/gpu.md': { 'gpu-proofs': gpuProofs, 'path-costs': pathCosts },
};

function updated(document) {
  let text = readFileSync(join(ROOT, document), 'utf8');
  for (const [name, figures] of Object.entries(DOCUMENTS[document])) {
    const begin = `<!-- figures:${name} -->`;
    const end = `<!-- /figures:${name} -->`;
    const from = text.indexOf(begin);
    const to = text.indexOf(end);
    if (from < 0 || to < from) continue;
    const lines = figures();
    const body = lines.length === 0 ? '' : `${lines.join('\n').trimEnd()}\n`;
    text = `${text.slice(0, from + begin.length)}\n${body}${text.slice(to)}`;
  }
  return text;
}

/** Each document with every `<!-- figures:NAME -->` ... `<!-- /figures:NAME -->` filled from the results, where that changes it. */
export function outdatedDocuments() {
  return Object.keys(DOCUMENTS)
    .map((document) => ({ document, text: updated(document) }))
    .filter(({ document, text }) => text !== readFileSync(join(ROOT, document), 'utf8'));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const isCheck = process.argv.includes('--check');
  for (const { document, text } of outdatedDocuments()) {
    if (!isCheck) {
      writeFileSync(join(ROOT, document), text);
      continue;
    }
    process.exitCode = 1;
    process.stderr.write(`${document}: figures differ from bench/results\n`);
  }
}
