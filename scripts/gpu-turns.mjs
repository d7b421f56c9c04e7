// Where the time of a turn of slices goes: the profile beside the shares of a bare copy.
import { committed, link, percent, quantile, table } from './gpu-results.mjs';
import { FILES } from './gpu-runs.mjs';

const { twoGpus, bigSlices } = FILES.transfer;
const SHOWN = { pages: 32 * 1024, split: 4 * 1024 };
const median = (values) => quantile(values, 0.5);
const us = (value) => value.toFixed(0);

function rowsOf(file, output) {
  return (output?.results ?? []).flatMap(({ lane, path, kind, pageBytes, bytes, samples, ...row }) => {
    if (path !== 'p2p' || SHOWN[kind] !== pageBytes || samples.turns === undefined) return [];
    const part = (name) => median(samples.turns.map((turn) => turn[name]));
    const { slices } = samples.turns[0];
    const bareUs = bytes / row.bareCopyGigabytesPerSecond.p50 / 1000;
    const between = slices > 1 ? part('betweenEndsUs') : null;
    return [
      [
        `${kind === 'split' ? '4 KiB pieces' : '32 KiB pages'}, ${(bytes / 2 ** 20).toLocaleString('en-US')} MiB`,
        lane,
        String(slices),
        us(part('beforePostUs')),
        us(part('firstSliceUs')),
        between === null ? '-' : us(between),
        us(part('postingUs') / slices),
        us(median(samples.elapsedMs) * 1000),
        us(bareUs),
        between === null ? '-' : percent(bareUs / (slices * between), 1),
        link(file),
      ],
    ];
  });
}

/** Medians over the turns, in µs; empty for results from before it was measured. */
export function turns(read = committed) {
  const rows = [twoGpus, bigSlices].flatMap((file) => rowsOf(file, read(file)));
  const header = ['moved', 'lane', 'slices', 'until taken up', 'first slice', 'between ends', 'posting a slice', 'all', 'bare copy', 'share between ends', 'result']; // biome-ignore format: one line
  return rows.length === 0 ? [] : table(header, rows);
}
