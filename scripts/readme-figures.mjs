// Writes the figures of README.md, docs/bench.md and docs/gpu.md from bench/results/<machine>, so that no figure is ever typed.
//   node scripts/readme-figures.mjs           writes them
//   node scripts/readme-figures.mjs --check   exit code 1 when one differs from what would be written
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bars } from './gpu-bars.mjs';
import { gpuProofs, pathCosts } from './gpu-figures.mjs';
import { pathOrder } from './gpu-path-order.mjs';
import { bounceFigures, deviceTransferFigures, gpuTtftFigures, interferenceFigures } from './gpu-readme-figures.mjs';
import { percent, ROOT, shortCommit, table } from './gpu-results.mjs';
import { turns } from './gpu-turns.mjs';

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

const ms = (value) => (value == null ? '-' : value >= 100 ? value.toFixed(0) : value.toFixed(1));
const link = (machine, file) => `[${basename(file)}](bench/results/${machine}/${file})`;
const where = ({ machine, file, output }) =>
  `${output.machine.cpu}, ${output.machine.cores} cores, ${output.machine.memoryGiB} GiB, Node ${output.machine.node}, commit ${shortCommit(output.commit)}: ${link(machine, file)}`;

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

/** `bench ttft --prefix-hit`: what is sent before the first forward step. */
function prefixFigures() {
  return newestResults('prefix').flatMap((result) => {
    const { settings, results } = result.output;
    const rows = results.map((row) => {
      const ideal = results.find(({ variant, prefixHit }) => variant === 'ideal' && prefixHit === row.prefixHit);
      return [
        percent(row.prefixHit),
        row.variant,
        ms(row.ttftMs.p50),
        (row.ttftMs.p50 / ideal.ttftMs.p50).toFixed(2),
        ms(row.exposedTailMs.p50),
        ms(row.lastSliceMs.p50),
        row.wrongBytes,
      ];
    });
    return [
      `${settings.model}, prompts of ${results[0].promptTokens} tokens, chunks of ${settings.chunk}, link paced to ${settings.linkGbps} Gbit/s, prefill of ${settings.tflops} TFLOP/s; medians of ${settings.requests} requests in ms.`,
      '',
      ...table(['hit', 'variant', 'TTFT', 'over ideal', 'exposed tail', 'last slice', 'wrong bytes'], rows),
      '',
      where(result).replace('](bench/', '](../bench/'),
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

/** How long the event loop was ever held up. */
function sessionsFigures() {
  return newestResults('sessions').flatMap((result) => {
    const rows = result.output.results.map((row) => [
      row.variant,
      row.sessions,
      Math.round(row.requestsPerSecond),
      row.loopDelayMs.p99.toFixed(2),
      row.loopDelayMs.max.toFixed(2),
      row.turns.wallMs?.max.toFixed(2) ?? '-',
      row.turns.longestOwnMs?.toFixed(2) ?? '-',
      row.turns.garbageCollection.maxMs.toFixed(2),
      row.heapBytesPerSession === null ? '-' : Math.round(row.heapBytesPerSession),
    ]);
    const head = ['row', 'requests at once', 'requests/s', 'loop delay p99', 'max', 'longest turn', 'without GC'];
    return [
      ...table([...head, 'longest collection', 'heap bytes/session'], rows),
      '',
      where(result).replace('](bench/', '](../bench/'),
      '',
    ];
  });
}

/** Settings of a replay that are no options of it, or say where its output goes. */
const NO_OPTIONS = new Set(
  'trace json report memory engine gpus path copyBlocks tokensPerHashId arrivalsOverMs context generation'.split(' '),
);
/** The command that a result was made with, all options named: defaults may change, and the figures with them. */
function traceCommand(settings) {
  // One rank is what a side has that nobody says more of.
  const isOneRank = (key, value) => /(Tp|Pp|Cp)$/.test(key) && String(value) === '1';
  const options = Object.entries(settings)
    .filter(([key, value]) => !NO_OPTIONS.has(key) && value !== null && !isOneRank(key, value))
    .map(([key, value]) => `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)} ${value}`);
  return `npm run bench -- trace --trace ${basename(settings.trace)} ${options.sort().join(' ')}`;
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
      `${basename(settings.trace)}, ${settings.speedUp} x as fast, lengths x ${settings.lengthScale}, in ${seconds.toFixed(0)} s of replay; times in ms. Made with`,
      '',
      '```sh',
      traceCommand(settings),
      '```',
      '',
      ...table(['variant', 'done', 'TTFT p50', 'p90', 'p99', 'TBT p50', 'good', 'hit', 'wrong bytes'], rows),
      '',
      where(result).replace('](bench/', '](../bench/'),
      '',
    ];
  });
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
  'docs/bench.md': { prefix: prefixFigures, trace: traceFigures, sessions: sessionsFigures },
  'docs/gpu.md': { 'gpu-bars': bars, 'gpu-turns': turns, 'gpu-proofs': gpuProofs, 'path-costs': pathCosts },
  // Not a document, but as much of a copy.
  'native/test/measured_path_order.inc': { 'path-order': pathOrder },
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
