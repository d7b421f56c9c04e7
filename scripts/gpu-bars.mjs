// The bars of the GPU path against the committed results: what was asked for, what was measured, met or not, and why not.
import { CAUSES } from './gpu-bar-causes.mjs';
import { commitOf, committed, link, percent, quantile, rowOf, table } from './gpu-results.mjs';
import { FILES } from './gpu-runs.mjs';

const KIB = 1024;
const { twoGpus, bigSlices } = FILES.transfer;

const atLeast = (bound) => ({ bound, relation: '>=' });
const atMost = (bound) => ({ bound, relation: '<=' });
const microseconds = (value) => `${value.toFixed(value < 100 ? 1 : 0)} µs`;
const milliseconds = (value) => `${value.toFixed(2)} ms`;
const times = (value) => `${value.toFixed(value < 10 ? 2 : 0)} x`;
const share = (value) => percent(value, 1);
const size = (bytes) => `${(bytes / 2 ** 20).toLocaleString('en-US')} MiB`;

/** Shares of a bare copy, of every result that has the lane; a result from before it was measured says so. */
function shares(files, lane, pageBytes, kind = 'pages') {
  return (read) =>
    files.flatMap((file) => {
      const row = rowOf(read(file), lane, pageBytes, kind);
      if (row === undefined) return [];
      const isOld = row.shareOfBareCopy === undefined;
      const note = isOld ? `${percent(row.shareOfRoof, 1)} of the agent's own copy; no bare copy in this result` : '';
      const shape =
        kind === 'layers'
          ? 'pieces of many layers a slot, '
          : kind === 'pages' && lane.startsWith('bounce')
            ? 'pages of one layer, '
            : '';
      return [
        {
          what: `${size(row.bytes)}, ${shape}${lane}`,
          about: shape.replace(', ', ''),
          value: row.shareOfBareCopy ?? null,
          note,
          file,
        },
      ];
    });
}

const overNixl = (lane) => (read) =>
  [twoGpus, bigSlices].flatMap((file) => {
    const value = read(file)?.ratios.p2pOverRdma?.[`${lane} ${32 * KIB}`];
    return value === undefined ? [] : [{ what: lane, value, file }];
  });

const overBareLoop = (read) =>
  [twoGpus, bigSlices].flatMap((file) =>
    Object.entries(read(file)?.ratios.nixlOverBareLoop ?? {}).map(([subject, value]) => {
      return { what: `pages of ${size(Number(subject.split(' ').at(-1)))}`, value, file };
    }),
  );

const slice = (name) => (read) =>
  [twoGpus, bigSlices].flatMap((file) => {
    const values = read(file)?.slices?.[name];
    return values === undefined ? [] : [{ what: 'p50', value: quantile(values, 0.5), file }];
  });

const emptyArena = (read) => {
  const costs = read(FILES.bounceTransfer)?.emptyArena;
  if (costs == null) return [];
  return [
    { what: 'right after another, p50', value: quantile(costs.busyUs, 0.5), file: FILES.bounceTransfer },
    { what: 'after a pause, p50', value: quantile(costs.idleUs, 0.5), file: FILES.bounceTransfer },
  ];
};

const tails = (read) =>
  FILES.ttft.flatMap((file) => {
    const name = /^gpu-ttft-(.*)-(\d+)k\.json$/.exec(file);
    const what = `${name?.[1]} ${1024 * Number(name?.[2])}`;
    const row = read(file)?.results.find(({ variant }) => variant === 'pipelined');
    if (row === undefined) return [{ what, value: null, note: 'no result', file }];
    return [
      { what: `${what}, n = ${row.requests}`, about: what, value: row.exposedTailMs.p50 / row.lastSliceMs.p50, file },
    ];
  });

const slowDowns = (read) =>
  FILES.interference.flatMap((file) =>
    (read(file)?.results ?? [])
      .filter(({ load }) => load === 'own')
      .map(({ variant, chunkTokens, path, slowDown }) => {
        return { what: `${variant.split(' ')[0]}, chunks of ${chunkTokens}`, about: path, value: slowDown.p50, file };
      }),
  );

const aborts = (read) => {
  const p99 = (file, what, values = []) => (values.length === 0 ? [] : [{ what, value: quantile(values, 0.99), file }]);
  const [direct, bounced] = [read(twoGpus), read(FILES.bounceTransfer)];
  return [
    ...p99(twoGpus, 'p2p under way', direct?.aborts?.freeMs),
    ...p99(twoGpus, 'p2p behind an event', direct?.aborts?.behindEventMs),
    ...p99(twoGpus, 'p2p long runs', direct?.longRunAborts?.freeMs),
    ...p99(FILES.bounceTransfer, "bounce, the writer's", bounced?.aborts?.freeMs),
    ...p99(FILES.bounceTransfer, 'bounce, behind an event', bounced?.aborts?.behindEventMs),
    ...p99(FILES.bounceTransfer, "bounce, the receiver's", bounced?.aborts?.receiverFreeMs),
  ];
};

const bytesAfterAborts = (read) =>
  [
    [twoGpus, 'p2p pages', read(twoGpus)?.aborts],
    [twoGpus, 'p2p long runs', read(twoGpus)?.longRunAborts],
    [FILES.bounceTransfer, 'bounce', read(FILES.bounceTransfer)?.aborts],
  ].flatMap(([file, what, costs]) => (costs == null ? [] : [{ what, value: costs.wrongBytes, file }]));

const soak = (read) =>
  (read(FILES.soak)?.paths ?? []).map(({ path, slices, wrongBytes }) => {
    return { what: `${slices.toLocaleString('en-US')} over ${path}`, value: wrongBytes, file: FILES.soak };
  });

/** From the middle of the run to its end, of both processes' GPUs together. */
const soakMemory = (read) =>
  (read(FILES.soak)?.paths ?? []).flatMap(({ path, memory }) => {
    if (memory === undefined) return [];
    const mib = ({ deviceMiB }) => deviceMiB.reduce((sum, one) => sum + one, 0);
    return [{ what: `device, ${path}`, value: mib(memory.last) - mib(memory.half), file: FILES.soak }];
  });

/** The same of the writer's heap after a collection, and of what is resident of both processes. */
const soakHostMemory = (read) =>
  (read(FILES.soak)?.paths ?? []).flatMap(({ path, memory }) => {
    if (memory?.last.heapBytes === undefined) return [];
    const grown = (of) => (of(memory.last) - of(memory.half)) / 2 ** 20;
    return [
      { what: `heap, ${path}`, value: grown(({ heapBytes }) => heapBytes), file: FILES.soak },
      {
        what: `resident, ${path}`,
        value: grown(({ rssBytes }) => rssBytes.writer + rssBytes.receiver),
        file: FILES.soak,
      },
    ];
  });

const bytes = (value) => `${value} bytes`;

/** In the order of the requirement. `measure` gives one measurement a row; `value` null: not measured, `note` says why. */
const BARS = [
  { name: 'share-32k-32', figure: 'p2p, 32 KiB pages scattered on both sides, share of one bare copy, 32 blocks', ...atLeast(0.9), say: share, measure: shares([twoGpus, bigSlices], 'p2p-32', 32 * KIB) },
  { name: 'share-32k-16', figure: 'the same with 16 blocks', ...atLeast(0.8), say: share, measure: shares([twoGpus, bigSlices], 'p2p-16', 32 * KIB) },
  { name: 'over-nixl', figure: 'the same against plain NIXL, 16 blocks', ...atLeast(30), say: times, measure: overNixl('p2p-16') },
  { name: 'share-split', figure: 'p2p, 4 KiB pieces of larger pages (TP split), share of one bare copy', ...atLeast(0.7), say: share, measure: (read) => ['p2p-16', 'p2p-32'].flatMap((lane) => shares([twoGpus, bigSlices], lane, 4 * KIB, 'split')(read)) },
  { name: 'bounce-share', figure: 'bounce over NIXL, 4 KiB pieces, share of one bare copy', ...atLeast(0.7), say: share, measure: (read) => ['bounce-16', 'bounce-32'].flatMap((lane) => ['layers', 'pages'].flatMap((kind) => shares([FILES.bounceTransfer], lane, 4 * KIB, kind)(read))) },
  { name: 'bounce-empty', figure: 'a page through an empty arena', ...atMost(100), say: microseconds, measure: emptyArena },
  { name: 'bare-loop', figure: '`nixl` path, few large descriptors, against a raw C loop over the same NIXL', ...atLeast(0.98), say: share, measure: overBareLoop },
  { name: 'event', figure: 'event complete to the end of a page queued behind it (no less than to its first byte), p2p', ...atMost(20), say: microseconds, measure: slice('eventToPageUs') },
  { name: 'js-thread', figure: 'JS thread, a slice of 2,048 fragments', ...atMost(20), say: microseconds, measure: slice('submitUs') },
  { name: 'posting', figure: 'native prepare before the launch, a slice of 2,048 fragments', ...atMost(40), say: microseconds, measure: slice('postingUs') },
  { name: 'tail', figure: 'exposed tail over the last slice, `ttft --engine gemm`', ...atMost(1.2), say: times, measure: tails },
  { name: 'slow-down', figure: "prefill slow-down beside its own pages' transfer", ...atMost(0.02), say: (value) => percent(value, 1), measure: slowDowns },
  { name: 'abort', figure: 'pages free after an abort, p99', ...atMost(10), say: milliseconds, measure: aborts },
  { name: 'after-abort', figure: 'bytes that land in pages after an abort', ...atMost(0), say: bytes, measure: bytesAfterAborts },
  { name: 'soak', figure: 'slices in a row, random shapes, cancels mixed in: wrong bytes', ...atMost(0), say: bytes, measure: soak },
  { name: 'soak-memory', figure: 'the same: memory that grew from the middle of the run to its end', ...atMost(0), say: (value) => `${value} MiB`, measure: soakMemory },
  { name: 'soak-host-memory', figure: 'the same of host memory, in slices of half a run', ...atMost(8), say: (value) => `${value.toFixed(1)} MiB`, measure: soakHostMemory },
]; // biome-ignore format: a table

/** `met`: null where nothing was measured that can be judged. */
export function barRows(read = committed, causes = CAUSES) {
  return BARS.flatMap(({ name, figure, bound, relation, say, measure }) => {
    const found = measure(read);
    const measured = found.length > 0 ? found : [{ what: '', value: null, note: 'no result', file: null }];
    return measured.map(({ what, about = what, value, note = '', file }) => {
      const met = value === null ? null : relation === '>=' ? value >= bound : value <= bound;
      const output = file === null ? null : read(file);
      return {
        name,
        figure,
        bar: `${relation === '>=' ? '>=' : '<='} ${say(bound)}`,
        what,
        measured: value === null ? note : say(value),
        met,
        cause: met === false ? (causes[`${name}: ${about}`] ?? causes[name] ?? 'Not established.') : '',
        file: output === null ? null : file,
        commit: output === null ? null : commitOf(output),
      };
    });
  });
}

/** One row a bar: of several measurements, each with what it is of, and those that miss it marked. */
function tableRow(rows) {
  const [{ figure, bar }] = rows;
  const measured = rows.map(({ what, measured: value, met }) => {
    const said = met === false ? `**${value}**` : value;
    return what === '' ? said : `${what}: ${said}`;
  });
  const [met, missed, unjudged] = [true, false, null].map((kind) => rows.filter((row) => row.met === kind));
  const verdict = [
    ...(missed.length > 0 ? [`**not met**${missed.length < rows.length ? ` (${missed.length} of ${rows.length})` : ''}`] : []),
    ...(unjudged.length > 0 ? [`not judged${unjudged.length < rows.length ? ` (${unjudged.length} of ${rows.length})` : ''}`] : []),
    ...(met.length === rows.length ? ['met'] : []),
  ]; // biome-ignore format: one line each
  const causes = [...new Set(missed.map(({ cause }) => cause))].map((cause) => {
    const about = [...new Set(missed.filter((row) => row.cause === cause).map(({ what }) => what))];
    return missed.every((row) => row.cause === cause) && missed.length === rows.length
      ? cause
      : `${about.join('; ')}: ${cause}`;
  });
  const files = new Map(
    rows.flatMap(({ file, commit }) => (file === null ? [] : [[file, `${link(file)}, ${commit}`]])),
  );
  return [
    figure,
    bar,
    measured.join('; '),
    verdict.join('; '),
    causes.join(' '),
    [...files.values()].join('; ') || '-',
  ];
}

/** The table of docs/gpu.md. */
export function bars(read = committed, causes = CAUSES) {
  const rows = barRows(read, causes);
  const names = [...new Set(rows.map(({ name }) => name))];
  return table(
    ['figure', 'bar', 'measured', 'verdict', 'why not, and what was tried', 'result'],
    names.map((name) => tableRow(rows.filter((row) => row.name === name))),
  );
}
