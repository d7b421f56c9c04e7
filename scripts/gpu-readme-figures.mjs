// The README's tables of GPU runs, from the results of every machine that has them; scripts/readme-figures.mjs puts them
// in place. Each section may be given results instead of the committed ones: [{machine, file, output}].
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { percent, quantile, ROOT, shortCommit, table } from './gpu-results.mjs';
import { FILES } from './gpu-runs.mjs';

const RESULTS = join(ROOT, 'bench/results');
const KIB = 1024;

/** GPU runs are not dated. */
function resultsNamed(files) {
  if (!existsSync(RESULTS)) return [];
  return readdirSync(RESULTS, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && entry.name !== 'local')
    .flatMap(({ name: machine }) =>
      files
        .filter((file) => existsSync(join(RESULTS, machine, file)))
        .map((file) => ({ machine, file, output: JSON.parse(readFileSync(join(RESULTS, machine, file), 'utf8')) })),
    );
}

const ms = (value) => (value == null ? '-' : value >= 100 ? value.toFixed(0) : value.toFixed(1));
const link = (machine, file) => `[${file}](bench/results/${machine}/${file})`;
const onGpus = ({ machine, file, output }) => {
  const gpus = output.machine.gpus.map(({ name }) => name);
  return `${gpus.length} x ${gpus[0]}, commit ${shortCommit(output.commit)}: ${link(machine, file)}`;
};
const kindOf = (row) => `${row.kind} ${row.pageBytes}`;
const kindsOf = (output) => [...new Set(output.results.map(kindOf))];
const lanesOf = (output) => [...new Set(output.results.map(({ lane }) => lane))];
const rate = (percentiles) => (percentiles == null ? '-' : percentiles.p50.toFixed(0));

/** Of a bare copy, and of the agent's own contiguous copy; a result from before bare copies has no share of one. */
function cell(row) {
  if (row === undefined) return '-';
  return `${row.gigabytesPerSecond.p50.toFixed(1)} (${percent(row.shareOfBareCopy, 1)}, ${percent(row.shareOfRoof, 1)})`;
}

/** The bars of one row of a table: each lane's share of a bare copy, met or not. */
function verdicts(rows, bounds) {
  const known = bounds.flatMap(({ lane, bound }) => {
    const row = rows.find((other) => other.lane === lane);
    return row === undefined ? [] : [{ lane, bound, share: row.shareOfBareCopy }];
  });
  const said = known.map(({ lane, bound, share }) => {
    const met = share == null ? 'no bare copy' : share >= bound ? 'met' : '**not met**';
    return `${lane} >= ${percent(bound)}: ${met}`;
  });
  return said.join('; ') || '-';
}

const TRANSFER_BARS = {
  [`pages ${32 * KIB}`]: [
    { lane: 'p2p-16', bound: 0.8 },
    { lane: 'p2p-32', bound: 0.9 },
  ],
  [`split ${4 * KIB}`]: [
    { lane: 'p2p-16', bound: 0.7 },
    { lane: 'p2p-32', bound: 0.7 },
  ],
};
const BOUNCE_BARS = {
  [`layers ${4 * KIB}`]: [
    { lane: 'bounce-16', bound: 0.7 },
    { lane: 'bounce-32', bound: 0.7 },
  ],
};

function bareCopySentence(output) {
  const found = kindsOf(output).flatMap((kind) => output.results.find((row) => kindOf(row) === kind) ?? []);
  const [first] = found.filter((row) => row.bareCopyDeviceGigabytesPerSecond != null);
  if (first === undefined)
    return "This result is from before bare copies were measured: shares are of the agent's own.";
  const speeds = found.map(
    (row) => `${row.bytes / 2 ** 20} MiB ${row.bareCopyDeviceGigabytesPerSecond.p50.toFixed(0)}`,
  );
  return `By the GPU's own clock, which does not count the call, a bare copy moves ${[...new Set(speeds)].join(', ')} GB/s.`;
}

const ahead = ({ beforeEvent, behindEventMs }) =>
  beforeEvent === undefined ? '' : `, in ${beforeEvent} of ${behindEventMs.length} before the event was reached`;

function transferTimes({ slices, aborts, ratios }) {
  const said = [
    `A slice of 2,048 pages costs the JS thread ${quantile(slices.submitUs, 0.5).toFixed(1)} µs and the progress thread ${quantile(slices.postingUs, 0.5).toFixed(1)} µs;`,
    `from a CUDA event to the end of a page queued behind it: ${quantile(slices.eventToPageUs, 0.5).toFixed(1)} µs (medians).`,
  ];
  for (const [subject, share] of Object.entries(ratios.nixlOverBareLoop ?? {})) {
    const pageBytes = Number(subject.split(' ').at(-1));
    const verdict = share >= 0.98 ? 'met' : '**not met**';
    said.push(
      `The \`nixl\` path moves pages of ${pageBytes / KIB} KiB at ${percent(share, 1)} of a raw loop over the same NIXL (>= 98 %: ${verdict}).`,
    );
  }
  if (aborts != null) {
    said.push(
      `Pages of slices cancelled under way are free after ${quantile(aborts.freeMs, 0.99).toFixed(1)} ms (p99 of ${aborts.freeMs.length}), ` +
        `${aborts.wrongBytes} bytes land in them afterwards; of slices queued behind an event after ` +
        `${quantile(aborts.behindEventMs, 0.99).toFixed(2)} ms${ahead(aborts)}.`,
    );
  }
  return said.join(' ');
}

export function deviceTransferFigures(results = resultsNamed(Object.values(FILES.transfer))) {
  return results.flatMap((result) => {
    const { output } = result;
    if (output.settings.gpus[0] === output.settings.gpus[1]) return [];
    const lanes = lanesOf(output);
    const rows = kindsOf(output).map((kind) => {
      const own = output.results.filter((row) => kindOf(row) === kind);
      const [first] = own;
      const size = `${first.pageBytes / KIB} KiB`;
      return [
        first.kind === 'split' ? `${size} pieces of larger pages` : `${size} pages`,
        `${first.bytes / 2 ** 20} MiB`,
        rate(first.bareCopyGigabytesPerSecond),
        rate(first.roofGigabytesPerSecond),
        ...lanes.map((lane) => cell(own.find((row) => row.lane === lane))),
        verdicts(own, TRANSFER_BARS[kind] ?? []),
      ];
    });
    return [
      `Scattered pages between two GPUs in slices of ${output.settings.slicePages.toLocaleString('en-US')}, GB/s (median), in brackets the share of one bare copy of the same bytes by the driver and of a contiguous one by the agent, all in the same turns and by the host's clock; \`p2p-16\` copies with 16 blocks.`,
      '',
      ...table(['what', 'moved', 'bare copy', "agent's copy", ...lanes, 'bar, of the bare copy'], rows),
      '',
      `${bareCopySentence(output)} ${transferTimes(output)}`,
      '',
      onGpus(result),
      '',
    ];
  });
}

/** The arena's own run: slices through `bounce`, pages of one layer beside pieces of many. */
export function bounceFigures(results = resultsNamed([FILES.bounceTransfer])) {
  return results.flatMap((result) => {
    const { output } = result;
    const lanes = lanesOf(output);
    const rows = kindsOf(output).map((kind) => {
      const own = output.results.filter((row) => kindOf(row) === kind);
      const [first] = own;
      const what = first.kind === 'layers' ? 'pieces of many layers' : 'pages of one layer';
      return [
        `${first.pageBytes / KIB} KiB ${what}`,
        `${first.bytes / 2 ** 20} MiB`,
        rate(first.bareCopyGigabytesPerSecond),
        rate(first.roofGigabytesPerSecond),
        ...lanes.map((lane) => cell(own.find((row) => row.lane === lane))),
        verdicts(own, BOUNCE_BARS[kind] ?? []),
        own.reduce((sum, row) => sum + row.wrongBytes, 0),
      ];
    });
    const { emptyArena, aborts } = output;
    const busyUs = quantile(emptyArena.busyUs, 0.5);
    const times = [
      bareCopySentence(output),
      `A slice of one page through an empty arena takes ${busyUs.toFixed(0)} µs right after another (<= 100 µs: ${busyUs <= 100 ? 'met' : '**not met**'}), ` +
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
      'The same through the bounce arena (gathered, one NIXL write a chunk, scattered); `bounce-16` gathers and scatters with 16 blocks.',
      '',
      ...table(['what', 'moved', 'bare copy', "agent's copy", ...lanes, 'bar, of the bare copy', 'wrong bytes'], rows),
      '',
      times.join(' '),
      '',
      onGpus(result),
      '',
    ];
  });
}

export function gpuTtftFigures(results = resultsNamed(FILES.ttft)) {
  const found = results
    .flatMap((result) => result.output.results.map((row) => ({ result, row })))
    .filter(({ row }) => row.variant === 'pipelined')
    .sort((a, b) => a.row.model.localeCompare(b.row.model) || a.row.promptTokens - b.row.promptTokens);
  if (found.length === 0) return [];
  const rows = found.map(({ result, row }) => {
    const ratio = row.exposedTailMs.p50 / row.lastSliceMs.p50;
    return [
      row.model,
      row.promptTokens,
      row.chunkTokens,
      row.requests,
      ms(row.prefillMs.p50),
      ms(row.lastSliceMs.p50),
      ms(row.exposedTailMs.p50),
      ratio.toFixed(2),
      ratio <= 1.2 ? 'met' : '**not met**',
      row.wrongBytes,
      shortCommit(result.output.commit),
      link(result.machine, result.file),
    ];
  });
  return [
    'Pipelined prefill on one GPU (its matrix products by cuBLAS, then its pages) to a server on another; medians in ms. The last slice counts from the end of its chunk; the bar is a tail of at most 1.2 slices.',
    '',
    ...table(
      ['model', 'prompt', 'chunk', 'requests', 'prefill', 'last slice', 'exposed tail', 'tail / slice', 'bar', 'wrong bytes', 'commit', 'result'],
      rows,
    ), // biome-ignore format: a header
    '',
  ];
}

export function interferenceFigures(results = resultsNamed(FILES.interference)) {
  const rows = results.flatMap((result) =>
    result.output.results.map((row) => [
      row.chunkTokens,
      row.path,
      row.variant.startsWith('p2p-') ? row.variant.split(' ')[0].slice(4) : '-',
      row.load,
      row.gigabytesPerSecond.toFixed(1),
      ms(row.aloneMs.p50),
      ms(row.prefillMs.p50),
      percent(row.slowDown.p50, 1),
      // What the bar is about; a path that is kept busy on purpose is measured to be told, not judged.
      row.load !== 'own' ? '-' : row.slowDown.p50 <= 0.02 ? 'met' : '**not met**',
      shortCommit(result.output.commit),
      link(result.machine, result.file),
    ]),
  );
  if (rows.length === 0) return [];
  return [
    "What transfers cost the prefill beside them (llama-3.1-8b, four chunks): `own` moves each chunk's pages behind its event (the bar is at most 2 %), `saturating` keeps the path busy all the time.",
    '',
    ...table(
      ['chunk', 'path', 'blocks', 'load', 'GB/s', 'alone ms', 'beside ms', 'slow-down', 'bar', 'commit', 'result'],
      rows,
    ),
    '',
  ];
}
