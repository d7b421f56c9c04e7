// Which path was faster for pages of each kind and size, for native/test/path_order_test.cc, which holds the model of
// native/core/path_cost.cc to it: scripts/readme-figures.mjs puts it into native/test/measured_path_order.inc.
import { commitOf, committed, rowOf, speedOf } from './gpu-results.mjs';
import { FILES } from './gpu-runs.mjs';

/** Copies with the bound on blocks that the constants are of. */
const LANES = { kP2p: 'p2p-16', kRdma: 'rdma', kBounce: 'bounce-16' };
const KINDS = { pages: 'kPages', split: 'kSplit', layers: 'kLayers' };

function cppRow({ kind, pageBytes, bytes, link }, speeds, files) {
  const known = Object.entries(speeds).filter(([, speed]) => speed != null);
  if (known.length < 2) return [];
  const ordered = known.sort(([, a], [, b]) => b - a);
  const paths = ordered.map(([path]) => `DataPath::${path}`).join(', ');
  const seen = ordered.map(([path, speed]) => `${path.slice(1)} ${speed.toFixed(1)}`).join(', ');
  const sources = files.map((file) => `${file}, ${commitOf(committed(file))}`).join('; ');
  return [
    `{PageKind::${KINDS[kind]}, ${pageBytes}, ${bytes}, GpuLink::${link}, {${paths}}},  // ${seen} GB/s (${sources})`,
  ];
}

function transferRows(file, link) {
  const output = committed(file);
  if (output === null) return [];
  return output.results
    .filter(({ lane }) => lane === LANES.kP2p)
    .flatMap((row) => {
      const rdma = rowOf(output, LANES.kRdma, row.pageBytes, row.kind);
      return cppRow({ ...row, link }, { kP2p: speedOf(row), kRdma: speedOf(rdma) }, [file]);
    });
}

/** Beside the same pages by the other paths, whose slices were larger. */
function bounceRows(file, others, link) {
  const output = committed(file);
  const beside = committed(others);
  if (output === null || beside === null) return [];
  return output.results
    .filter(({ lane }) => lane === LANES.kBounce)
    .flatMap((row) => {
      const [p2p, rdma] = [LANES.kP2p, LANES.kRdma].map((lane) =>
        speedOf(rowOf(beside, lane, row.pageBytes, row.kind)),
      );
      return cppRow({ ...row, link }, { kP2p: p2p, kRdma: rdma, kBounce: speedOf(row) }, [file, others]);
    });
}

/** Rows of C++; the marks of the figures are comments there. */
export function pathOrder() {
  const { twoGpus, bigSlices, oneGpu } = FILES.transfer;
  return [
    '*/',
    ...transferRows(bigSlices, 'kNvlink'),
    ...transferRows(twoGpus, 'kNvlink'),
    ...transferRows(oneGpu, 'kSameGpu'),
    ...bounceRows(FILES.bounceTransfer, twoGpus, 'kNvlink'),
    '/*',
  ];
}
