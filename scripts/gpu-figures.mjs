// The figures of docs/gpu.md, from the results of one machine with two GPUs: scripts/readme-figures.mjs puts them in place.
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  commitOf,
  committed,
  FOLDER,
  filesWithoutCommit,
  link,
  percent,
  quantile,
  ROOT,
  rowOf,
  rowsOf,
  speedOf,
} from './gpu-results.mjs';
import { FILES } from './gpu-runs.mjs';

const COSTS = 'native/core/path_cost.cc';
/** What the tool printed in runs before its results were stamped. */
const SANITIZER_TEXT = 'sanitize.txt';

function kills(output) {
  const rows = rowsOf(output);
  const told = rows.map((row) => row.pidfd_ms);
  const changed = rows.map((row) => row.last_change_ms);
  const late = rows.reduce((sum, row) => sum + row.late_bytes, 0);
  return (
    `A writer killed in the middle of its writes, ${rows.length} times: its last byte landed after ${Math.min(...changed).toFixed(1)} to ` +
    `${Math.max(...changed).toFixed(1)} ms, its end was told after ${Math.min(...told).toFixed(1)} to ${Math.max(...told).toFixed(1)} ms, and ` +
    `${late} bytes landed after that: ${link(FILES.kill)}, ${commitOf(output)}.`
  );
}

function soak(output) {
  const mib = (bytes) => (bytes / 2 ** 20).toFixed(0);
  const paths = output.paths.map(({ path, slices, cancelled, behindEvents, memory }) => {
    const rss = memory === undefined ? '' : `, resident ${mib(memory.half.rssBytes.writer)} MiB at half, ${mib(memory.last.rssBytes.writer)} at the end`; // biome-ignore format: one line
    return `${slices.toLocaleString('en-US')} over ${path} (${cancelled.toLocaleString('en-US')} cancelled, ${behindEvents.toLocaleString('en-US')} behind events${rss})`;
  });
  return `Slices of random shapes in a row: ${paths.join('; ')}; ${output.wrongBytes} wrong bytes: ${link(FILES.soak)}, ${commitOf(output)}.`;
}

function nativeTests(output) {
  const passed = output.tests - output.failures - output.disabled - output.errors;
  return `Tests from C++ (kernels, device memory, p2p, bounce): ${passed} of ${output.tests} passed: ${link(FILES.nativeTests)}, ${commitOf(output)}.`;
}

function nodeTests(output) {
  const skipped = output.tests.filter(({ outcome }) => outcome === 'skipped');
  const why = skipped.length === 0 ? '' : ` (${[...new Set(skipped.map((test) => test.why))].join('; ')})`;
  return `Tests from TypeScript (\`test/gpu\`): ${output.passed} passed, ${output.failed} failed, ${output.skipped} skipped${why}: ${link(FILES.nodeTests)}, ${commitOf(output)}.`;
}

function sanitized(file, output) {
  const { tool, filter } = output.settings;
  return `compute-sanitizer ${tool} over ${output.tests} kernel tests (\`${filter}\`): ${output.exitCode === 0 ? 'no finding' : 'findings'}: ${link(file)}, ${commitOf(output)}.`;
}

function aborted(output) {
  const line = (costs, what) => {
    if (costs == null) return [];
    const [freeMs, behindMs] = [quantile(costs.freeMs, 0.99), quantile(costs.behindEventMs, 0.99)];
    return [
      `${what}: ${freeMs.toFixed(2)} ms under way, ${behindMs.toFixed(2)} ms behind a forward, ${costs.wrongBytes} bytes afterwards`,
    ];
  };
  const all = [...line(output.aborts, 'pages'), ...line(output.longRunAborts, 'long runs')];
  return `Pages free after a cancel, p99 over p2p: ${all.join('; ')}: ${link(FILES.transfer.twoGpus)}, ${commitOf(output)}.`;
}

function sanitizers(from) {
  const lines = FILES.sanitize.flatMap((file) => from(file, (output) => sanitized(file, output)));
  if (lines.length > 0 || !existsSync(join(ROOT, FOLDER, SANITIZER_TEXT))) return lines;
  return [`compute-sanitizer (memcheck, racecheck) over the kernel tests: what it printed is ${link(SANITIZER_TEXT)}, ${commitOf({})}.`]; // biome-ignore format: one line
}

/** What multiprocessors get out of the link, without an agent. */
function kernels(output) {
  const rows = rowsOf(output);
  const copy = rows.find(({ what }) => what === 'one copy');
  const said = ['bulk', 'bulk, settled'].map((kind) => {
    const found = rows.filter(({ what, shape }) => what === kind && shape === '32KiB');
    const speeds = found.map((row) => `${row.blocks} blocks ${row.GBps.toFixed(0)}`);
    return `${kind === 'bulk' ? 'tiles handed out while they run' : 'tiles dealt out beforehand'}: ${speeds.join(', ')}`;
  });
  return `The kernels alone on 32 KiB pages scattered on both sides, GB/s beside ${copy.GBps.toFixed(0)} of one bare copy: ${said.join('; ')}: ${link('pair.json')}, ${commitOf(output)}.`;
}

/** What was shown beside the README's tables; what has no result is not claimed. */
export function gpuProofs() {
  const from = (file, say) => {
    const output = committed(file);
    return output === null ? [] : [say(output)].flat();
  };
  const lines = [
    ...from(FILES.nativeTests, nativeTests),
    ...from(FILES.nodeTests, nodeTests),
    ...sanitizers(from),
    ...from(FILES.soak, soak),
    ...from(FILES.kill, kills),
    ...from(FILES.transfer.twoGpus, aborted),
    ...from('pair.json', kernels),
  ];
  const unnamed = filesWithoutCommit();
  if (unnamed.length > 0) lines.push(`Files that name no commit: ${unnamed.map((file) => link(file)).join(', ')}.`);
  return lines.map((line) => `- ${line}`);
}

/** A constant of path_cost.cc as the source has it, so that the table cannot say another. */
function constant(name) {
  const source = readFileSync(join(ROOT, COSTS), 'utf8');
  const found = new RegExp(`constexpr double ${name} = ([\\d.]+)`).exec(source);
  if (found === null) throw new Error(`${COSTS}: there is no constant ${name}`);
  return Number(found[1]);
}

const KIB = 1024;

/** Each constant of the path choice, how it is taken and what the committed results say it is. */
export function pathCosts() {
  const pages = committed(FILES.transfer.twoGpus);
  const big = committed(FILES.transfer.bigSlices);
  const bounce = committed(FILES.bounceTransfer);
  const onePage = rowOf(bounce, 'bounce-16', 4 * KIB);
  const manyLayers = rowOf(bounce, 'bounce-16', 4 * KIB, 'layers');
  const perSlot = () => {
    if (!onePage || !manyLayers) return undefined;
    const us = (row) => row.bytes / 1e3 / speedOf(row);
    // A slot of the pieces of layers holds 64 of them.
    const slots = onePage.bytes / (4 * KIB) - manyLayers.bytes / (64 * 4 * KIB);
    return (us(onePage) - us(manyLayers)) / slots;
  };
  const perRun = () => {
    const row = rowOf(pages, 'rdma', 512 * KIB);
    return row && row.pageBytes / 1e3 / speedOf(row);
  };
  const two = FILES.transfer.twoGpus;
  const kernel = (shape) =>
    rowsOf(committed('pair.json') ?? []).find(
      (row) => row.what === 'registers' && row.shape === shape && row.blocks === 16,
    )?.GBps;
  const rows = [
    ['kP2pFixedUs', 'µs', 'from an event to the end of a page queued behind it', pages && quantile(pages.slices.eventToPageUs, 0.5), two],
    ['kP2pRate', 'GB/s', '32 KiB pages in large slices, 16 blocks', speedOf(rowOf(big, 'p2p-16', 32 * KIB)), FILES.transfer.bigSlices],
    ['kP2pLongRunRate', 'GB/s', 'pages of 16 MiB, 16 blocks', speedOf(rowOf(big, 'p2p-16', 16 * KIB * KIB)), FILES.transfer.bigSlices],
    ['kP2pSmallPieceRate', 'GB/s', 'pieces of 64 bytes through registers, 16 blocks, by the kernel alone', kernel('64 x 64 B'), 'pair.json'],
    ['kP2pNarrowWordRate', 'GB/s', '32 KiB pieces that agree modulo 4 only, through registers, 16 blocks, by the kernel alone', kernel('32KiB at odd offsets'), 'pair.json'],
    ['kP2pEngineRate', 'GB/s', 'one contiguous copy', big?.results[0]?.roofGigabytesPerSecond?.p50, FILES.transfer.bigSlices],
    ['kRdmaRate', 'GB/s', 'pages of 16 MiB', speedOf(rowOf(big, 'rdma', 16 * KIB * KIB)), FILES.transfer.bigSlices],
    ['kRdmaRunUs', 'µs', '512 KiB pages, by run: the poster is held up', perRun(), two],
    ['kBounceFixedUs', 'µs', 'a page through an empty arena', bounce && quantile(bounce.emptyArena.busyUs, 0.5), FILES.bounceTransfer],
    ['kBounceRate', 'GB/s', '4 KiB pieces of layers, 16 blocks, slots included', speedOf(manyLayers), FILES.bounceTransfer],
    ['kBounceSlotUs', 'µs', 'what pages of one layer take longer than pieces of many, by slot', perSlot(), FILES.bounceTransfer],
    ['kPcieRate', 'GB/s', 'of any path between GPUs that NVLink does not join: assumed', null, null],
  ]; // biome-ignore format: a table
  const digits = (value) => (value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(3));
  return [
    '| constant | value | what it is | last measured | differs by | result |',
    '|---|---|---|---|---|---|',
    ...rows.map(([name, unit, how, measured, file]) => {
      const seen = measured == null ? '-' : `${digits(measured)} ${unit}`;
      const by = measured == null ? '-' : percent(measured / constant(name) - 1);
      return `| \`${name}\` | ${constant(name)} ${unit} | ${how} | ${seen} | ${by} | ${file === null ? '-' : link(file)} |`;
    }),
  ];
}
